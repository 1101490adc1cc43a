-- Enqueue rows of the jobs table as they are now: new rows, and rows that are queued again, for which the history has
-- further columns. Returns how many were enqueued; a row whose job is live is skipped.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_enqueue(these uuid[]) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
DECLARE
    now_ms bigint := {schema}.now_ms();
    before text := current_setting('jobmill.writes_at', true);
    made text[];
    first_due bigint;
    awaited text[];
BEGIN
    PERFORM set_config('jobmill.writes_at', pg_trigger_depth()::text, true);
    PERFORM {schema}.check_text('type', known.type, {max_name}, false, false)
    FROM (SELECT DISTINCT ours.type FROM {schema}.jobs_table AS ours WHERE ours.id = ANY (these)) AS known;
    PERFORM {schema}.jobs_table_attempts(ours.attempts), {schema}.check_payload(ours.payload::text)
    FROM {schema}.jobs_table AS ours
    WHERE ours.id = ANY (these) AND (ours.attempts < 0 OR octet_length(ours.payload::text) > 1000000);
    WITH gone AS (
        DELETE FROM {schema}.history WHERE history.id = ANY (these::text[]) RETURNING history.*
    ),

    inserted AS (
        INSERT INTO {schema}.jobs (
            id, queue, name, priority, due_ms, created_ms, updated_ms, payload, tenant, options, errors, error, claims,
            started_ms, worker, log_lines, attempts, tracebacks, flow, has_dependents, has_records
        )
        SELECT
            ours.id::text, coalesce(gone.queue, {default_queue}), ours.type, coalesce(gone.priority, 0),
            {schema}.jobs_table_ms(ours.next_run_at),
            coalesce(gone.created_ms, {schema}.jobs_table_ms(ours.created_at)), now_ms, ours.payload::text,
            ours.org_id::text, {options}, ours.attempts, ours.last_error, coalesce(gone.claims, 0),
            coalesce(gone.started_ms, 0), coalesce(gone.worker, ''), gone.log_lines, gone.attempts,
            gone.tracebacks, gone.flow, gone.has_dependents, gone.has_records
        FROM unnest(these) WITH ORDINALITY AS one (id, n)
        JOIN {schema}.jobs_table AS ours ON ours.id = one.id
        LEFT JOIN gone ON gone.id = one.id::text
        ORDER BY one.n
        ON CONFLICT (id) DO NOTHING
        RETURNING jobs.id, jobs.due_ms, jobs.has_dependents, jobs.has_records
    ),

    cleared AS (
        DELETE FROM {schema}.steps WHERE steps.id IN (SELECT inserted.id FROM inserted WHERE inserted.has_records)
    ),

    silenced AS (
        DELETE FROM {schema}.signals WHERE signals.id IN (SELECT inserted.id FROM inserted WHERE inserted.has_records)
    )

    SELECT
        array_agg(inserted.id), min(inserted.due_ms), array_agg(inserted.id) FILTER (WHERE inserted.has_dependents)
    INTO made, first_due, awaited FROM inserted;
    IF awaited IS NOT NULL THEN
        PERFORM {schema}.reopen(now_ms, awaited);
    END IF;
    -- A job that was due before now may stand before the position of a claim cursor. A moment does not matter: any
    -- commit may come that late.
    IF first_due < now_ms - 100 THEN
        INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
    PERFORM {schema}.jobs_table_tell('enqueued', made);
    PERFORM {schema}.wake(ARRAY[{default_queue}]);
    PERFORM set_config('jobmill.writes_at', coalesce(before, ''), true);
    RETURN coalesce(cardinality(made), 0);
END $$;
