-- Where jobs are.
-- ?1 ids as JSON. Rows: id, seq.
SELECT jobs.id, jobs.seq FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.id = wanted.value
