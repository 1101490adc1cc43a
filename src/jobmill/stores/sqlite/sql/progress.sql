-- How far a running job is.
-- ?1 seq, ?2 now, ?3 progress as JSON.
UPDATE jobmill_jobs SET updated_ms = ?2, progress = ?3 WHERE seq = ?1
