-- The live job that has the same unique key as another.
-- ?1 seq of the other. One row: id.
SELECT live.id
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_jobs AS live
    ON live.queue = jobs.queue AND live.name = jobs.name AND live.unique_key = jobs.unique_key
    AND (live.state = 'waiting' OR live.state = 'running')
WHERE jobs.seq = ?1 AND live.seq <> ?1
