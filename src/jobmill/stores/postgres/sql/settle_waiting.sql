-- Settle jobs that wait again, under the guard. NULL leaves attempts, due time, slot and runs unchanged. A job that waits
-- for a signal which it has got is due at once. A job that was seized while it waited for others is held again.
-- others: a JSON array with an object for each settlement. Returns the ids that were settled. A finished run of a
-- recurring job is noted for the statistics. Workers of older versions send tracebacks instead of attempts.
CREATE OR REPLACE FUNCTION {schema}.settle_waiting(now_ms bigint, others json) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    done text[];
    back boolean;
    dependents text[];
    waits boolean;
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT one.*, coalesce(one.due_ms, now_ms + one.delay_ms) AS due
        FROM json_to_recordset(others) AS one (
            id text, token text, errors integer, crashes integer, error text, result text, attempts text,
            tracebacks text, due_ms bigint, delay_ms bigint, slot_ms bigint, runs integer, failed_runs integer, last_error text,
            revision integer, run_state text, waits_for text
        )
    ),

    settled AS (
        UPDATE {schema}.jobs SET
            lease_until_ms = 0, token = '', updated_ms = now_ms, errors = ended.errors, crashes = ended.crashes,
            error = ended.error, result = nullif(ended.result, 'null'), progress = NULL,
            attempts = coalesce(ended.attempts, ended.tracebacks, jobs.attempts), held = NULL,
            waits_for = ended.waits_for, due_ms = coalesce(ended.due, jobs.due_ms),
            slot_ms = coalesce(ended.slot_ms, jobs.slot_ms),
            runs = coalesce(ended.runs, jobs.runs),
            failed_runs = coalesce(ended.failed_runs, jobs.failed_runs),
            last_error = CASE WHEN ended.runs IS NULL THEN jobs.last_error ELSE ended.last_error END,
            last_finished_ms = CASE WHEN ended.runs IS NULL THEN jobs.last_finished_ms ELSE now_ms END
        FROM ended
        WHERE
            jobs.id = ended.id AND jobs.token = ended.token AND jobs.lease_until_ms > now_ms
            AND (ended.revision IS NULL OR ended.revision = coalesce(jobs.revision, 0))
        RETURNING
            jobs.id, ended.due, jobs.queue, jobs.name, jobs.started_ms, ended.run_state, jobs.waits_for,
            jobs.dependencies
    ),

    noted AS (
        INSERT INTO {schema}.runs (finished_ms, duration_ms, queue, name, state)
        SELECT now_ms, now_ms - settled.started_ms, settled.queue, settled.name, settled.run_state
        FROM settled WHERE settled.run_state IS NOT NULL
    )

    SELECT
        coalesce(array_agg(settled.id), '{}'), bool_or(settled.due IS NULL OR settled.due < now_ms),
        bool_or(settled.waits_for IS NOT NULL),
        array_agg(settled.id) FILTER (WHERE settled.dependencies IS NOT NULL)
    INTO done, back, waits, dependents FROM settled;
    IF dependents IS NOT NULL THEN
        PERFORM {schema}.hold_again(now_ms, dependents);
    END IF;
    IF waits THEN
        UPDATE {schema}.jobs SET due_ms = now_ms
        WHERE
            jobs.id = ANY (done)
            AND EXISTS (SELECT FROM {schema}.signals WHERE signals.id = jobs.id AND signals.name = jobs.waits_for);
        back := back OR FOUND;
    END IF;
    IF back THEN
        INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
    RETURN done;
END $$;
