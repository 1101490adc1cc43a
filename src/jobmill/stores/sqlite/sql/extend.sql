-- Prolong leases, under the guard.
-- ?1 now, ?2 the new end; per lease: seq, token.
UPDATE jobmill_jobs AS jobs SET lease_until_ms = ?2
FROM (VALUES {rows of 2 from ?3}) AS leases
WHERE
    jobs.seq = leases.column1 AND jobs.token = leases.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
