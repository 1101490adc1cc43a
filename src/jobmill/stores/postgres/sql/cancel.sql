-- Live jobs become cancelled and move to the history; whoever runs one loses the lease.
-- $1 ids, $2 now, $3 how long to keep each, $4 as one of how many.
WITH keep AS (
    SELECT * FROM unnest($1::text[], $3::bigint[], $4::integer[]) AS one (id, age_ms, keep_last)
),

gone AS (
    DELETE FROM {schema}.jobs USING keep WHERE jobs.id = keep.id RETURNING jobs.*, keep.age_ms, keep.keep_last
)

INSERT INTO {schema}.history (
    due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms, finished_ms, expires_ms, keep_last,
    state, worker, id, queue, name, payload, unique_key, tenant, options, log_lines, error, result, progress, tracebacks,
    doomed, recurrence, revision, slot_ms, runs, failed_runs, last_error, last_finished_ms
)
SELECT
    due_ms, created_ms, priority, errors, crashes, claims, $2, started_ms, $2, $2 + age_ms, keep_last,
    'cancelled', worker, id, queue, name, payload, unique_key, tenant, options, log_lines, error, result, progress,
    tracebacks, doomed, recurrence, revision, slot_ms, runs, failed_runs, last_error, last_finished_ms
FROM gone
