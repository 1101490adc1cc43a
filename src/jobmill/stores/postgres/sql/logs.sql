-- The last log lines of a job, newest first.
-- $1 id, $2 most. Rows: at_ms, text.
SELECT at_ms, text FROM {schema}.logs WHERE id = $1 ORDER BY line DESC LIMIT $2
