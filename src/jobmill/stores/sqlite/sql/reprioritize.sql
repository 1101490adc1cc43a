-- Another priority.
-- ?1 seq, ?2 now, ?3 priority.
UPDATE jobmill_jobs SET updated_ms = ?2, priority = ?3 WHERE seq = ?1
