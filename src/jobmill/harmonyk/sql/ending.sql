-- Cancel live jobs as the verb does: they move to the history, and a worker that runs one loses its lease.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_cancel(
    this text[], at_ms bigint DEFAULT {schema}.now_ms(), age_ms bigint[] DEFAULT '{{keep_failed_ms}}',
    keep_last integer[] DEFAULT '{NULL}'
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM {schema}.jobs_table_tell('cancelled', this);
    WITH keep AS (
        SELECT * FROM unnest($1::text[], $3::bigint[], $4::integer[]) AS one (id, age_ms, keep_last)
    ),

    gone AS (
        DELETE FROM {schema}.jobs USING keep WHERE jobs.id = keep.id RETURNING jobs.*, keep.age_ms, keep.keep_last
    )

    INSERT INTO {schema}.history (
        due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms, finished_ms, expires_ms,
        keep_last, state, worker, id, queue, name, payload, unique_key, tenant, options, log_lines, error, result,
        progress, tracebacks, doomed, recurrence, revision, slot_ms, runs, failed_runs, last_error, last_finished_ms
    )
    SELECT
        due_ms, created_ms, priority, errors, crashes, claims, $2, started_ms, $2, $2 + age_ms, keep_last,
        'cancelled', worker, id, queue, name, payload, unique_key, tenant, options, log_lines, error, result, progress,
        tracebacks, doomed, recurrence, revision, slot_ms, runs, failed_runs, last_error, last_finished_ms
    FROM gone;
END $$;

-- Delete jobs in any state, with their log lines; a worker that runs one loses its lease.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_remove(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    PERFORM {schema}.jobs_table_tell('removed', these);
    WITH live AS (
        DELETE FROM {schema}.jobs WHERE id = ANY ($1::text[]) RETURNING id, log_lines
    ),

    final AS (
        DELETE FROM {schema}.history WHERE id = ANY ($1::text[]) RETURNING id, log_lines
    )

    DELETE FROM {schema}.logs
    WHERE id IN (
        SELECT gone.id FROM (SELECT * FROM live UNION ALL SELECT * FROM final) AS gone WHERE gone.log_lines IS NOT NULL
    );
END $$;
