-- Give a live recurring job another recurrence, payload, due time and slot.
-- ?1 seq, ?2 now, ?3 due_ms, ?4 recurrence, ?5 payload.
UPDATE jobmill_jobs SET updated_ms = ?2, due_ms = ?3, slot_ms = ?3, recurrence = ?4, payload = ?5 WHERE seq = ?1
