-- Write the present state of jobs to their rows, in the transaction that changed the jobs. It never waits for a row: a
-- row that is locked is noted, and written later (jobs_table_catch_up). So no application blocks a worker. Applications
-- lock their rows first and our jobs after them, so the two cannot deadlock.
-- The application's own triggers run in here, with the search path of the role that installed the table; therefore all
-- names are qualified.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_write(these uuid[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    before text := pg_catalog.current_setting('jobmill.writes_at', true);
    wrote bigint;
BEGIN
    -- Our own triggers on the table ignore what is written from this depth.
    PERFORM pg_catalog.set_config('jobmill.writes_at', pg_catalog.pg_trigger_depth()::text, true);
    WITH free AS MATERIALIZED (
        {behind}
        FOR NO KEY UPDATE OF ours SKIP LOCKED
    )

    UPDATE {schema}.jobs_table AS ours SET
        status = free.status, attempts = free.attempts, next_run_at = free.next_run_at, last_error = free.last_error,
        updated_at = free.updated_at
    FROM free WHERE ours.place = free.place;
    GET DIAGNOSTICS wrote = ROW_COUNT;
    -- Some rows are locked by others, or have changed since this statement began.
    IF wrote < pg_catalog.cardinality(these) THEN
        -- Also those that were noted before: a transaction that has not committed yet may have written such a row from an
        -- earlier state of its job, and removed the note.
        INSERT INTO {schema}.jobs_table_unwritten (id)
        SELECT behind.id FROM ({behind}) AS behind
        UNION SELECT note.id FROM {schema}.jobs_table_unwritten AS note WHERE note.id = ANY (these) AND NOT note.is_gone;
    END IF;
    PERFORM pg_catalog.set_config('jobmill.writes_at', coalesce(before, ''), true);
END $$;
