-- At the end of a transaction that cancelled or deleted rows of running jobs, or changed their tenant: change the jobs
-- now. A job that was settled meanwhile stays as it was settled, and its row is written from it.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_at_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    before text := current_setting('jobmill.writes_at', true);
    own_timeout text := current_setting('lock_timeout');
    began timestamptz := clock_timestamp();
    patience interval := own_timeout;
    asked text[];
    again uuid[];
    one record;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.jobs_table_asked RETURNING jobs_table_asked.*
    )

    SELECT array_agg(gone.id::text), coalesce(array_agg(gone.id) FILTER (WHERE gone.restarts), '{}') INTO asked, again
    FROM gone;
    IF asked IS NULL THEN
        RETURN NULL;
    END IF;
    -- Wait for jobs that are being settled, but only shortly while other jobs are locked: an exchange may need those,
    -- and of two transactions that wait for each other the exchange can be repeated, this commit cannot. In all, wait
    -- as long as the caller's own lock_timeout allows.
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '200ms', true);
            PERFORM FROM {schema}.jobs WHERE jobs.id = ANY (asked) ORDER BY jobs.id FOR UPDATE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF patience > interval '0' AND clock_timestamp() > began + patience THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(0.01);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', own_timeout, true);
    PERFORM set_config('jobmill.writes_at', pg_trigger_depth()::text, true);
    FOR one IN
        SELECT
            this.id, ours.id IS NOT NULL AS has_row, ours.status, ours.org_id::text AS tenant,
            jobs.id IS NOT NULL AS is_live
        FROM unnest(asked) AS this (id)
        LEFT JOIN {schema}.jobs_table AS ours ON ours.id = this.id::uuid
        LEFT JOIN {schema}.jobs ON jobs.id = this.id
    LOOP
        IF NOT one.has_row THEN
            PERFORM {schema}.jobs_table_remove(ARRAY[one.id]);
        ELSIF one.id::uuid = ANY (again) THEN
            PERFORM {schema}.jobs_table_restart(one.id);
        ELSIF NOT one.is_live THEN
            PERFORM {schema}.jobs_table_write(ARRAY[one.id::uuid]);
        ELSIF one.status = 'failed' THEN
            PERFORM {schema}.jobs_table_cancel(ARRAY[one.id]);
        ELSE
            UPDATE {schema}.jobs SET tenant = one.tenant WHERE jobs.id = one.id;
        END IF;
    END LOOP;
    PERFORM set_config('jobmill.writes_at', coalesce(before, ''), true);
    RETURN NULL;
END $$;

-- Let a job wait again as its row says. A worker that runs it has lost its lease, and nothing of that run is kept.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_restart(this text) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    UPDATE {schema}.jobs SET
        lease_until_ms = 0, token = '', crashes = 0, progress = NULL, updated_ms = {schema}.now_ms(), name = ours.type,
        tenant = ours.org_id::text, payload = ours.payload::text, errors = ours.attempts, error = ours.last_error,
        due_ms = {schema}.jobs_table_ms(ours.next_run_at)
    FROM {schema}.jobs_table AS ours WHERE ours.id = this::uuid AND jobs.id = this;
    IF FOUND THEN
        PERFORM {schema}.jobs_table_tell('enqueued', ARRAY[this]);
        INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
        PERFORM {schema}.wake(ARRAY[{default_queue}]);
    ELSE
        PERFORM {schema}.jobs_table_enqueue(ARRAY[this::uuid]);
    END IF;
END $$;
