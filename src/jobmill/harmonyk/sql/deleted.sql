-- AFTER DELETE of rows: remove their jobs; running jobs are removed when the transaction commits.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    these text[];
    held text[];
    others text[];
BEGIN
    SELECT array_agg(deleted.id::text) INTO these FROM deleted;
    SELECT array_agg(waiting.id) INTO held
    FROM (
        SELECT jobs.id FROM {schema}.jobs
        WHERE jobs.id = ANY (these) AND jobs.lease_until_ms = 0 ORDER BY jobs.id FOR UPDATE SKIP LOCKED
    ) AS waiting;
    others := ARRAY(
        SELECT jobs.id FROM {schema}.jobs WHERE jobs.id = ANY (these)
        EXCEPT
        SELECT unnest(held)
    );
    INSERT INTO {schema}.jobs_table_asked (id) SELECT unnest(others)::uuid;
    PERFORM {schema}.jobs_table_remove(ARRAY(SELECT unnest(these) EXCEPT SELECT unnest(others)));
    RETURN NULL;
END $$;

-- BEFORE TRUNCATE: the same for all rows. A transaction that is claiming or settling a job now waits for the table,
-- which is locked: that job is noted, and removed when the next job changes.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_truncating() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text := current_setting('jobmill.writes_at', true);
    held text[];
BEGIN
    PERFORM set_config('jobmill.writes_at', pg_trigger_depth()::text, true);
    SELECT array_agg(live.id) INTO held
    FROM (
        SELECT jobs.id FROM {schema}.jobs JOIN {schema}.jobs_table AS ours ON ours.id::text = jobs.id
        FOR UPDATE OF jobs SKIP LOCKED
    ) AS live;
    INSERT INTO {schema}.jobs_table_unwritten (id, is_gone)
    SELECT jobs.id::uuid, true FROM {schema}.jobs JOIN {schema}.jobs_table AS ours ON ours.id::text = jobs.id
    EXCEPT
    SELECT unnest(held)::uuid, true;
    PERFORM {schema}.jobs_table_remove(
        held
        || ARRAY(SELECT history.id FROM {schema}.history JOIN {schema}.jobs_table AS ours ON ours.id::text = history.id)
    );
    PERFORM set_config('jobmill.writes_at', coalesce(before, ''), true);
    RETURN NULL;
END $$;
