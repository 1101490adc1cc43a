-- AFTER UPDATE of a row by its application: change its job. A running job is changed when the transaction commits:
-- until then neither its worker's heartbeat nor a settlement has to wait for it.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_updated() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    this text := NEW.id::text;
    is_running boolean;
    is_held boolean;
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
    SELECT true INTO is_held FROM {schema}.jobs WHERE jobs.id = this AND jobs.lease_until_ms = 0 FOR UPDATE SKIP LOCKED;
    IF NEW.status = 'failed' AND OLD.status <> 'failed' THEN
        IF is_held THEN
            PERFORM {schema}.jobs_table_cancel(ARRAY[this]);
        ELSE
            INSERT INTO {schema}.jobs_table_asked (id) VALUES (NEW.id);
        END IF;
    ELSIF is_held THEN
        PERFORM {schema}.jobs_table_edit(
            this,
            CASE WHEN NEW.type <> OLD.type THEN NEW.type END,
            CASE WHEN NEW.payload <> OLD.payload THEN NEW.payload::text END,
            CASE WHEN NEW.attempts <> OLD.attempts THEN NEW.attempts END,
            CASE WHEN NEW.next_run_at IS DISTINCT FROM OLD.next_run_at THEN {schema}.jobs_table_ms(NEW.next_run_at) END,
            NEW.last_error IS DISTINCT FROM OLD.last_error, NEW.last_error, NEW.org_id::text
        );
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

-- Change a waiting job, which is locked, as its row was edited; NULL: not edited.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_edit(
    this text, new_name text, new_payload text, new_errors integer, new_due_ms bigint, has_error boolean,
    new_error text, new_tenant text
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE {schema}.jobs SET
        updated_ms = {schema}.now_ms(), name = coalesce(new_name, jobs.name), tenant = new_tenant,
        payload = coalesce(new_payload, jobs.payload), errors = coalesce(new_errors, jobs.errors),
        due_ms = coalesce(new_due_ms, jobs.due_ms), error = CASE WHEN has_error THEN new_error ELSE jobs.error END
    WHERE jobs.id = this;
    -- The job may now stand before the position of a claim cursor, and workers may sleep too long.
    IF new_name IS NOT NULL OR new_due_ms IS NOT NULL THEN
        PERFORM nextval('{schema}.rewinds');
        PERFORM {schema}.wake(ARRAY[{default_queue}]);
    END IF;
END $$;
