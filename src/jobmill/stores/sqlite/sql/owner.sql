-- The live job that owns a unique key.
-- ?1 queue, ?2 name, ?3 unique key. One row: seq, id, recurrence.
SELECT seq, id, recurrence FROM jobmill_jobs
WHERE queue = ?1 AND name = ?2 AND unique_key = ?3 AND (state = 'waiting' OR state = 'running')
