-- Settle jobs that are not kept: they leave, under the guard.
-- ?1 now; per lease: seq, token.
DELETE FROM jobmill_jobs
WHERE seq IN (
    SELECT jobs.seq
    FROM (VALUES {rows of 2 from ?2}) AS done CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = done.column1
    WHERE jobs.token = done.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
)
