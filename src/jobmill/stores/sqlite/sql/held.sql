-- The guard: which of these leases still own their jobs.
-- ?1 now; per lease: its index, seq, token. One row: the indexes that do, as JSON.
SELECT json_group_array(leases.column1)
FROM (VALUES {rows of 3 from ?2}) AS leases CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = leases.column2
WHERE jobs.token = leases.column3 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
