-- The rows among `these` that differ from their jobs, and the values that they should have. A job that is neither live
-- nor in the history was removed, or has left the history after its retention.
-- LIMIT 1 makes the planner use the indexes whatever it estimates.
SELECT ours.id, ours.place, should.status, should.attempts, should.next_run_at, should.last_error, should.updated_at
FROM {schema}.jobs_table AS ours
LEFT JOIN LATERAL (
    SELECT jobs.lease_until_ms, jobs.errors, jobs.due_ms, jobs.updated_ms, jobs.error
    FROM {schema}.jobs WHERE jobs.id = ours.id::text LIMIT 1
) AS live ON true
LEFT JOIN LATERAL (
    SELECT history.state, history.errors, history.due_ms, history.updated_ms, history.error
    FROM {schema}.history WHERE live.errors IS NULL AND history.id = ours.id::text LIMIT 1
) AS ended ON true
CROSS JOIN LATERAL (
    SELECT
        coalesce(live.errors, ended.errors, ours.attempts) AS attempts,
        coalesce({schema}.jobs_table_at(abs(coalesce(live.due_ms, ended.due_ms))), ours.next_run_at) AS next_run_at,
        coalesce(
            {schema}.jobs_table_at(coalesce(live.updated_ms, ended.updated_ms)), pg_catalog.clock_timestamp()
        ) AS updated_at,
        CASE
            WHEN live.lease_until_ms > 0 THEN 'running'
            WHEN live.errors IS NOT NULL THEN 'queued'
            WHEN ended.state = 'succeeded' THEN 'success'
            WHEN ended.state IS NOT NULL OR ours.status IN ('queued', 'running') THEN 'failed'
            ELSE ours.status
        END AS status,
        CASE
            WHEN live.errors IS NOT NULL THEN live.error
            -- An UPDATE that cancelled the job may have given a reason.
            WHEN ended.state = 'cancelled' AND ours.status = 'failed' THEN coalesce(ours.last_error, 'cancelled')
            WHEN ended.state = 'cancelled' THEN 'cancelled'
            WHEN ended.state IS NOT NULL THEN ended.error
            WHEN ours.status IN ('queued', 'running') THEN 'removed'
            ELSE ours.last_error
        END AS last_error
) AS should
WHERE
    ours.id = ANY (these)
    AND (ours.status, ours.attempts, ours.next_run_at, ours.last_error)
    IS DISTINCT FROM (should.status, should.attempts, should.next_run_at, should.last_error)
