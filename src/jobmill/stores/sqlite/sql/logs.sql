-- The last log lines of a job, newest first.
-- ?1 id, ?2 most. Rows: at_ms, text.
SELECT logs.at_ms, logs.text
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_logs AS logs ON logs.seq = jobs.seq
WHERE jobs.id = ?1 ORDER BY logs.line DESC LIMIT ?2
