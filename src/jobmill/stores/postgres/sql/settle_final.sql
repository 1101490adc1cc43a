-- Settle jobs that end, under the guard: they move to the history, or are deleted where they are not kept.
-- An array in which no job has a value may be empty. Returns the ids that were settled. `tracebackses` has attempts, as
-- JSON; the name stays, because functions cannot be replaced otherwise, and a new one would have other rights.
CREATE OR REPLACE FUNCTION {schema}.settle_final(
    now_ms bigint, ids text[], tokens text[], states text[], errorses integer[], crasheses integer[], results text[],
    error_texts text[], tracebackses text[], ages bigint[], lasts integer[], runses integer[], failed_runses integer[],
    last_errors text[], revisions integer[]
) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    done text[];
BEGIN
    WITH ended AS (
        SELECT *
        FROM unnest(
            ids, tokens, states, errorses, crasheses, results, error_texts, tracebackses, ages, lasts, runses,
            failed_runses, last_errors, revisions
        ) AS one (
            id, token, final_state, final_errors, final_crashes, final_result, final_error, final_attempts, age_ms,
            keep_last, final_runs, final_failed_runs, final_last_error, decided_from
        )
    ),

    gone AS (
        DELETE FROM {schema}.jobs USING ended
        WHERE
            jobs.id = ended.id AND jobs.token = ended.token AND jobs.lease_until_ms > now_ms
            AND (ended.decided_from IS NULL OR ended.decided_from = coalesce(jobs.revision, 0))
        RETURNING
            jobs.due_ms, jobs.created_ms, jobs.priority, jobs.claims, jobs.started_ms, jobs.worker, jobs.id, jobs.queue,
            jobs.name, jobs.payload, jobs.unique_key, jobs.tenant, jobs.options, jobs.log_lines, jobs.progress,
            jobs.attempts, jobs.tracebacks, jobs.doomed, jobs.recurrence, jobs.revision, jobs.slot_ms, jobs.runs,
            jobs.failed_runs, jobs.last_error, jobs.last_finished_ms, jobs.unstarted, ended.final_state, ended.final_errors,
            ended.final_crashes, ended.final_result, ended.final_error, ended.final_attempts, ended.age_ms,
            ended.keep_last, ended.final_runs, ended.final_failed_runs, ended.final_last_error
    ),

    kept AS (
        INSERT INTO {schema}.history (
            due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms, finished_ms, expires_ms,
            keep_last, state, worker, id, queue, name, payload, unique_key, tenant, options, log_lines, error, result,
            progress, attempts, tracebacks, doomed, recurrence, revision, slot_ms, runs, failed_runs, last_error,
            last_finished_ms, unstarted
        )
        SELECT
            due_ms, created_ms, priority, final_errors, final_crashes, claims, now_ms, started_ms, now_ms,
            now_ms + age_ms, keep_last, final_state, worker, id, queue, name, payload, unique_key, tenant, options,
            log_lines, final_error, nullif(final_result, 'null'), progress, coalesce(final_attempts, attempts),
            tracebacks, doomed, recurrence, revision, slot_ms, coalesce(final_runs, runs),
            coalesce(final_failed_runs, failed_runs),
            CASE WHEN final_runs IS NULL THEN last_error ELSE final_last_error END,
            CASE WHEN final_runs IS NULL THEN last_finished_ms ELSE now_ms END, unstarted
        FROM gone
        WHERE
            (coalesce(age_ms, 1) > 0 AND coalesce(keep_last, 1) > 0)
            -- The trigger of a jobs table (jobmill.harmonyk) reads the end of its jobs from the history, and deletes
            -- those that are not kept.
            OR (options = '{"preset":"harmonyk"}' AND (SELECT to_regclass('{schema}.jobs_table') IS NOT NULL))
    ),

    silenced AS (
        DELETE FROM {schema}.logs
        WHERE logs.id IN (SELECT gone.id FROM gone WHERE log_lines IS NOT NULL AND (age_ms <= 0 OR keep_last <= 0))
    )

    SELECT coalesce(array_agg(gone.id), '{}') INTO done FROM gone;
    RETURN done;
END $$;
