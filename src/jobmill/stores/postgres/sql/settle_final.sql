-- Settle jobs that end, under the guard: they move to the history, or are deleted where they are not kept.
-- An array in which no job has a value may be empty. `tracebackses` has attempts, as JSON. Returns the ids that were
-- settled, and of these `awaited`, which other jobs wait for (NULL: none), with their states (NULL: of a job that has failed; of all, if
-- all have succeeded). `freed_x`: where those stood that had slots of lanes (NULL: none). The awaited ones stay in the history as long as their dependents; the column says it, and not the lease: edges
-- may be younger than that.
--
-- Without `states`, all jobs are plain successes: they have no errors, crashes or runs, and all are kept alike, by the one
-- value of `ages` and of `lasts`. Instructions of the server for settle + claim, a job, at 25 a call (callgrind): 171,700
-- with the long statement, 152,100 with the short one, 153,500 with the columns of recurring jobs, which no plain success
-- uses but which are not to be lost. Without the list of settled ids 2,300 less.
CREATE OR REPLACE FUNCTION {schema}.settle_final(
    now_ms bigint, ids text[], tokens text[], states text[], errorses integer[], crasheses integer[], results text[],
    error_texts text[], tracebackses text[], ages bigint[], lasts integer[], runses integer[], failed_runses integer[],
    last_errors text[], revisions integer[], OUT done text[], OUT awaited text[], OUT awaited_states text[],
    OUT freed_queues text[], OUT freed_lanes text[], OUT freed_priorities integer[], OUT freed_joineds bigint[],
    OUT freed_seqs bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leftover text[];
BEGIN
    IF cardinality(states) = 0 THEN
        WITH gone AS (
            DELETE FROM {schema}.jobs USING unnest(ids, tokens, results) AS ended (given_id, given_token, final_result)
            WHERE jobs.id = ended.given_id AND jobs.token = ended.given_token AND jobs.lease_until_ms > now_ms
            RETURNING
                {moved}, attempts, runs, failed_runs, last_error, last_finished_ms, ended.final_result, slot, joined_ms,
                seq
        ),

        kept AS (
            INSERT INTO {schema}.history (
                {moved}, attempts, runs, failed_runs, last_error, last_finished_ms, state, errors, crashes, result,
                updated_ms, finished_ms, expires_ms, keep_last, pinned_expires_ms, pinned_keep_last
            )
            SELECT
                {moved_to_history}, attempts, runs, failed_runs, last_error, last_finished_ms, 'succeeded', 0, 0,
                nullif(final_result, 'null'), now_ms, now_ms,
                CASE WHEN has_dependents IS NULL THEN now_ms + ages[1] END,
                CASE WHEN has_dependents IS NULL THEN lasts[1] END,
                CASE WHEN has_dependents THEN now_ms + ages[1] END, CASE WHEN has_dependents THEN lasts[1] END
            FROM gone
        )

        SELECT
            coalesce(array_agg(gone.id), '{}'), array_agg(gone.id) FILTER (WHERE gone.has_dependents),
            array_agg(gone.queue) FILTER (WHERE gone.slot = 0), array_agg(gone.lane) FILTER (WHERE gone.slot = 0),
            array_agg(gone.priority) FILTER (WHERE gone.slot = 0),
            array_agg(gone.joined_ms) FILTER (WHERE gone.slot = 0), array_agg(gone.seq) FILTER (WHERE gone.slot = 0)
        INTO done, awaited, freed_queues, freed_lanes, freed_priorities, freed_joineds, freed_seqs FROM gone;
        RETURN;
    END IF;

    WITH gone AS (
        DELETE FROM {schema}.jobs
        USING unnest(
            ids, tokens, states, errorses, crasheses, results, error_texts, tracebackses, ages, lasts, runses,
            failed_runses, last_errors, revisions
        ) AS ended (
            given_id, given_token, final_state, final_errors, final_crashes, final_result, final_error, final_attempts,
            age_ms, keep_last, final_runs, final_failed_runs, final_last_error, decided_from
        )
        WHERE
            jobs.id = ended.given_id AND jobs.token = ended.given_token AND jobs.lease_until_ms > now_ms
            AND (ended.decided_from IS NULL OR ended.decided_from = coalesce(jobs.revision, 0))
        RETURNING
            {moved}, attempts, runs, failed_runs, last_error, last_finished_ms, ended.final_state, ended.final_errors,
            ended.final_crashes, ended.final_result, ended.final_error, ended.final_attempts, ended.age_ms,
            ended.keep_last, ended.final_runs, ended.final_failed_runs, ended.final_last_error, slot, joined_ms, seq
    ),

    kept AS (
        INSERT INTO {schema}.history (
            {moved}, state, errors, crashes, result, error, updated_ms, finished_ms, expires_ms, keep_last,
            pinned_expires_ms, pinned_keep_last, attempts, runs, failed_runs, last_error, last_finished_ms
        )
        SELECT
            {moved_to_history}, final_state, final_errors, final_crashes, nullif(final_result, 'null'), final_error, now_ms,
            now_ms,
            CASE WHEN has_dependents IS NULL THEN now_ms + age_ms END,
            CASE WHEN has_dependents IS NULL THEN keep_last END,
            CASE WHEN has_dependents THEN now_ms + age_ms END, CASE WHEN has_dependents THEN keep_last END,
            coalesce(final_attempts, attempts), coalesce(final_runs, runs),
            coalesce(final_failed_runs, failed_runs),
            CASE WHEN final_runs IS NULL THEN last_error ELSE final_last_error END,
            CASE WHEN final_runs IS NULL THEN last_finished_ms ELSE now_ms END
        FROM gone
        WHERE
            (coalesce(age_ms, 1) > 0 AND coalesce(keep_last, 1) > 0) OR has_dependents
            -- The trigger of a jobs table (jobmill.harmonyk) reads the end of its jobs from the history, and deletes
            -- those that are not kept.
            OR (options = '{"preset":"harmonyk"}' AND (SELECT to_regclass('{schema}.jobs_table') IS NOT NULL))
    )

    SELECT
        coalesce(array_agg(gone.id), '{}'), array_agg(gone.id) FILTER (WHERE gone.has_dependents),
        array_agg(nullif(gone.final_state, 'failed')) FILTER (WHERE gone.has_dependents),
        array_agg(gone.id) FILTER (
            WHERE
                (age_ms <= 0 OR keep_last <= 0) AND has_dependents IS NULL
                AND NOT (log_lines, has_records, dependencies) IS NULL
        ),
        array_agg(gone.queue) FILTER (WHERE gone.slot = 0), array_agg(gone.lane) FILTER (WHERE gone.slot = 0),
        array_agg(gone.priority) FILTER (WHERE gone.slot = 0),
        array_agg(gone.joined_ms) FILTER (WHERE gone.slot = 0), array_agg(gone.seq) FILTER (WHERE gone.slot = 0)
    INTO
        done, awaited, awaited_states, leftover, freed_queues, freed_lanes, freed_priorities, freed_joineds, freed_seqs
    FROM gone;
    IF leftover IS NOT NULL THEN
        PERFORM {schema}.forget(leftover);
    END IF;
END $$;
