-- AFTER UPDATE of a row by its application: change its job. A running job is changed when the transaction commits:
-- until then neither its worker's heartbeat nor a settlement has to wait for it.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_updated() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    this text := NEW.id::text;
    is_running boolean;
    is_locked boolean;
    due bigint := {schema}.jobs_table_ms(NEW.next_run_at);
    is_moved boolean := NEW.next_run_at IS DISTINCT FROM OLD.next_run_at AND NEW.next_run_at IS NOT NULL;
BEGIN
    SELECT jobs.lease_until_ms > 0 INTO is_running FROM {schema}.jobs WHERE jobs.id = this;
    IF is_running IS NULL THEN
        IF NEW.status = 'queued' THEN
            PERFORM {schema}.jobs_table_enqueue(ARRAY[NEW.id]);
        ELSE
            UPDATE {schema}.history SET name = NEW.type, tenant = NEW.org_id::text, payload = NEW.payload::text
            WHERE
                history.id = this
                AND (NEW.type, NEW.org_id, NEW.payload) IS DISTINCT FROM (OLD.type, OLD.org_id, OLD.payload);
        END IF;
        RETURN NULL;
    END IF;
    UPDATE {schema}.jobs_table_asked AS asked SET restarts = NEW.status = 'queued' WHERE asked.id = NEW.id;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    -- A job that is being claimed at this moment counts as running.
    SELECT true INTO is_locked FROM {schema}.jobs WHERE jobs.id = this AND jobs.lease_until_ms = 0 FOR UPDATE SKIP LOCKED;
    IF NEW.status = 'failed' AND OLD.status <> 'failed' THEN
        IF is_locked THEN
            PERFORM {schema}.jobs_table_cancel(ARRAY[this]);
        ELSE
            INSERT INTO {schema}.jobs_table_asked (id) VALUES (NEW.id);
        END IF;
    ELSIF is_locked THEN
        UPDATE {schema}.jobs SET
            updated_ms = {schema}.now_ms(), tenant = NEW.org_id::text,
            name = CASE WHEN NEW.type <> OLD.type THEN NEW.type ELSE jobs.name END,
            payload = CASE WHEN NEW.payload <> OLD.payload THEN NEW.payload::text ELSE jobs.payload END,
            errors = CASE WHEN NEW.attempts <> OLD.attempts THEN NEW.attempts ELSE jobs.errors END,
            due_ms = CASE WHEN is_moved AND jobs.held IS NULL THEN due ELSE jobs.due_ms END,
            held = CASE WHEN is_moved THEN {held_until} ELSE jobs.held END,
            error = CASE WHEN NEW.last_error IS DISTINCT FROM OLD.last_error THEN NEW.last_error ELSE jobs.error END
        WHERE jobs.id = this;
        -- The job may now stand before the position of a claim cursor, and workers may sleep too long.
        IF is_moved OR NEW.type <> OLD.type THEN
            INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
            PERFORM {schema}.wake(ARRAY[{default_queue}]);
        END IF;
    ELSIF
        (NEW.type, NEW.payload, NEW.attempts, NEW.next_run_at, NEW.last_error)
        IS DISTINCT FROM (OLD.type, OLD.payload, OLD.attempts, OLD.next_run_at, OLD.last_error)
    THEN
        RAISE 'the job % is running, or is being claimed: it stays as it is', NEW.id USING ERRCODE = 'object_in_use';
    ELSIF NEW.org_id IS DISTINCT FROM OLD.org_id THEN
        INSERT INTO {schema}.jobs_table_asked (id) VALUES (NEW.id);
    END IF;
    RETURN NULL;
END $$;
