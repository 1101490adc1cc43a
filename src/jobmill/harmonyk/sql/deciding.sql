-- BEFORE UPDATE of a row by its application: refuse what is not possible, and fill in the columns that change with it.
-- Queued and final rows may be edited; `failed` cancels a live job, `queued` runs a final job again; everything else is
-- refused.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_deciding() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    actual text;
    ended {schema}.history%ROWTYPE;
    possible text;
BEGIN
    IF NEW.type <> OLD.type THEN
        PERFORM {schema}.check_text('type', NEW.type, {max_name}, false, false);
    END IF;
    IF NEW.payload <> OLD.payload THEN
        PERFORM {schema}.check_payload(NEW.payload::text);
    END IF;
    IF NEW.attempts <> OLD.attempts THEN
        PERFORM {schema}.jobs_table_attempts(NEW.attempts);
    END IF;
    SELECT CASE WHEN jobs.lease_until_ms > 0 THEN 'running' ELSE 'queued' END INTO actual
    FROM {schema}.jobs WHERE jobs.id = OLD.id::text;
    IF OLD.status <> 'running' AND EXISTS (SELECT FROM {schema}.jobs_table_asked AS asked WHERE asked.id = OLD.id) THEN
        actual := NULL;  -- its worker loses it at the end of this transaction
    END IF;
    IF actual IS NOT NULL THEN
        IF NEW.id <> OLD.id THEN
            RAISE 'id: the job % is %, and keeps its id', OLD.id, actual USING ERRCODE = 'object_in_use';
        ELSIF NEW.status = 'failed' AND OLD.status <> 'failed' THEN
            IF NEW.last_error IS NULL OR NEW.last_error = OLD.last_error THEN
                NEW.last_error := 'cancelled';
            END IF;
        ELSIF NEW.status NOT IN (OLD.status, actual) THEN
            possible := 'failed, which cancels it';
        ELSIF actual = 'queued' THEN
            NEW.next_run_at := {schema}.jobs_table_due(NEW.next_run_at);
        ELSIF
            (NEW.type, NEW.payload, NEW.attempts, NEW.next_run_at, NEW.last_error)
            IS DISTINCT FROM (OLD.type, OLD.payload, OLD.attempts, OLD.next_run_at, OLD.last_error)
        THEN
            RAISE 'the job % is running: type, payload, attempts, next_run_at and last_error stay as they are', OLD.id
                USING ERRCODE = 'object_in_use', HINT = 'SET status = ''failed'' cancels it; then anything may change';
        END IF;
    ELSIF OLD.status IN ('queued', 'running') THEN
        SELECT * INTO ended FROM {schema}.history WHERE history.id = OLD.id::text;
        IF FOUND THEN
            -- The job was settled after this row was locked: the row now gets the values of the job.
            NEW.status := CASE WHEN ended.state = 'succeeded' THEN 'success' ELSE 'failed' END;
            NEW.attempts := ended.errors;
            NEW.next_run_at := {schema}.jobs_table_at(ended.due_ms);
            NEW.last_error := CASE WHEN ended.state = 'cancelled' THEN 'cancelled' ELSE ended.error END;
            RAISE NOTICE 'the job % has ended meanwhile: % stands', OLD.id, NEW.status;
        ELSIF NEW.status = 'queued' THEN
            NEW.next_run_at := {schema}.jobs_table_due(NEW.next_run_at);
        ELSIF NEW.status = 'running' AND OLD.status = 'queued' THEN
            possible := 'success or failed';
        END IF;
    ELSIF NEW.status = 'queued' AND OLD.status <> 'queued' THEN
        -- With fresh budgets, and due now, unless the same UPDATE sets other values.
        NEW.next_run_at := {schema}.jobs_table_due(nullif(NEW.next_run_at, OLD.next_run_at));
        NEW.attempts := CASE WHEN NEW.attempts = OLD.attempts THEN 0 ELSE NEW.attempts END;
        NEW.last_error := nullif(NEW.last_error, OLD.last_error);
    ELSIF NEW.status <> OLD.status THEN
        possible := 'queued, which has it run again';
    END IF;
    IF possible IS NOT NULL THEN
        RAISE 'status: the job % is %, and may become %; got %',
            OLD.id, coalesce(actual, OLD.status), possible, quote_literal(NEW.status)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'workers say what runs and what succeeded';
    END IF;
    IF NEW.updated_at = OLD.updated_at THEN
        NEW.updated_at := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;
