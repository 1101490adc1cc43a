-- Final jobs that are not among the last of their queue and state, as they should be.
-- $1 queue, $2 state, $3 keep_last, $4 most. Rows: id, name, queue, state, errors, options.
SELECT {row} FROM {schema}.history AS jobs
WHERE
    jobs.queue = $1 AND jobs.state = $2 AND jobs.keep_last = $3
    AND (jobs.finished_ms, jobs.id) < (
        SELECT last.finished_ms, last.id FROM {schema}.history AS last
        WHERE last.queue = $1 AND last.state = $2
        ORDER BY last.finished_ms DESC, last.id DESC LIMIT 1 OFFSET $3 - 1
    )
LIMIT $4 FOR UPDATE SKIP LOCKED
