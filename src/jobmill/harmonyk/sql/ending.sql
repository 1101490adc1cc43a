-- Cancel live jobs as the verb does: they move to the history, and a worker that runs one loses its lease.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_cancel(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := {schema}.now_ms();
BEGIN
    PERFORM {schema}.jobs_table_tell('cancelled', these);
    WITH gone AS (
        DELETE FROM {schema}.jobs WHERE jobs.id = ANY (these) RETURNING jobs.*
    )

    INSERT INTO {schema}.history ({kept_columns}, due_ms, state, updated_ms, finished_ms, expires_ms)
    SELECT
        {kept_columns},
        CASE
            WHEN held IS NULL THEN abs(due_ms)
            ELSE coalesce(
                (held::json #>> '{due,at_ms}')::bigint, now_ms + coalesce((held::json #>> '{due,after_ms}')::bigint, 0)
            )
        END,
        'cancelled', now_ms, now_ms, now_ms + {keep_failed_ms}
    FROM gone;
    PERFORM {schema}.wake(one.queues) FROM {schema}.release_dependents(now_ms, these) AS one
    WHERE one.queues IS NOT NULL;
END $$;

-- Delete jobs in any state, with all that belongs to them; a worker that runs one loses its lease.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_remove(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    released text[];
BEGIN
    PERFORM {schema}.jobs_table_tell('removed', these);
    released := {schema}.remove({schema}.now_ms(), these);
    IF released IS NOT NULL THEN
        PERFORM {schema}.wake(released);
    END IF;
END $$;
