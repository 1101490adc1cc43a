-- When the first waiting job of each queue and name became due.
-- $1 queue, $2 name (NULL: all), $3 now. Rows: queue, name, due_ms.
SELECT queue, name, min(due_ms) FROM {schema}.jobs
WHERE lease_until_ms = 0 AND due_ms <= $3 AND ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR name = $2)
GROUP BY queue, name
