-- Another due time.
-- ?1 seq, ?2 now, ?3 due_ms.
UPDATE jobmill_jobs SET updated_ms = ?2, due_ms = ?3 WHERE seq = ?1
