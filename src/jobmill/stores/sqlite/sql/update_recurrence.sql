-- Give a live recurring job another recurrence, due time and slot.
-- ?1 seq, ?2 due_ms, ?3 recurrence.
UPDATE jobmill_jobs SET due_ms = ?2, slot_ms = ?2, recurrence = ?3 WHERE seq = ?1
