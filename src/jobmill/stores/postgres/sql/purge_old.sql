-- Final jobs that are older than they should be kept; those that somebody works on are left for the next time.
-- $1 now, $2 most. Rows: id, name, queue, state, errors, options.
SELECT {row} FROM {schema}.history AS jobs
WHERE jobs.expires_ms <= $1 ORDER BY jobs.expires_ms LIMIT $2 FOR UPDATE SKIP LOCKED
