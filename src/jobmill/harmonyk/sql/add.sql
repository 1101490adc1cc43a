-- Make the rows of jobs that did not come from the table. The application's own triggers run in here: see write.sql.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_add(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    before text := pg_catalog.current_setting('jobmill.writes_at', true);
    made bigint;
BEGIN
    PERFORM pg_catalog.set_config('jobmill.writes_at', pg_catalog.pg_trigger_depth()::text, true);
    INSERT INTO {schema}.jobs_table (
        id, type, org_id, payload, status, attempts, next_run_at, last_error, created_at, updated_at
    )
    SELECT
        jobs.id::uuid, jobs.name, jobs.tenant::uuid, jobs.payload::jsonb,
        CASE WHEN jobs.lease_until_ms > 0 THEN 'running' ELSE 'queued' END, jobs.errors,
        {schema}.jobs_table_at(abs(jobs.due_ms)), jobs.error, {schema}.jobs_table_at(jobs.created_ms),
        {schema}.jobs_table_at(jobs.updated_ms)
    FROM {schema}.jobs WHERE jobs.id = ANY (these)
    ON CONFLICT (id) DO NOTHING;
    GET DIAGNOSTICS made = ROW_COUNT;
    -- A job that is requeued has its row already.
    IF made < pg_catalog.cardinality(these) THEN
        PERFORM {schema}.jobs_table_write(these::uuid[]);
    END IF;
    PERFORM pg_catalog.set_config('jobmill.writes_at', coalesce(before, ''), true);
END $$;

-- AFTER INSERT of a job of the repository: make its row, in the same transaction.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_job_added() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF {schema}.jobs_table_uuid(NEW.id) IS NULL THEN
        RETURN NULL;
    END IF;
    IF NEW.tenant IS NOT NULL AND {schema}.jobs_table_uuid(NEW.tenant) IS NULL THEN
        RAISE 'org_id: expected a uuid in lower case, because the jobs table has one; got %', NEW.tenant
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {schema}.jobs_table_add(ARRAY[NEW.id]);
    RETURN NULL;
END $$;
