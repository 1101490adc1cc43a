-- Insert a job with a recurrence, or give its recurrence, payload and due time to the live job that has its key.
-- given_recurrence is its JSON without a revision. One row: the id that stands for the job, and how; 'feed' as above.
CREATE OR REPLACE FUNCTION {schema}.enqueue_recurring(
    at_ms bigint, told boolean, inside boolean, given_id text, given_queue text, given_name text, given_priority integer,
    given_due bigint, given_delay bigint, given_payload text, given_key text, given_tenant text, given_options text,
    given_recurrence text, keeps_due boolean
) RETURNS TABLE (id text, how text) LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    due bigint := coalesce(given_due, now_ms + given_delay);
    owner record;
BEGIN
    IF NOT told AND EXISTS (SELECT FROM {schema}.queues AS known WHERE known.feed AND known.queue = given_queue) THEN
        RETURN QUERY SELECT NULL::text, 'feed';
        RETURN;
    END IF;
    IF inside THEN
        PERFORM {schema}.wake(ARRAY[given_queue]);
    END IF;
    IF due < now_ms THEN
        PERFORM nextval('{schema}.rewinds');
    END IF;
    -- Until it is inserted or its owner is locked: an owner may go, or come, in between.
    LOOP
        IF EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = given_id)
            OR EXISTS (SELECT FROM {schema}.history WHERE history.id = given_id)
        THEN
            RETURN QUERY SELECT given_id, 'exists';
            RETURN;
        END IF;
        SELECT jobs.id, jobs.recurrence, jobs.revision INTO owner
        FROM {schema}.jobs
        WHERE
            jobs.queue = given_queue AND jobs.name = given_name AND jobs.unique_key IS NOT NULL
            AND {schema}.key_hash(jobs.unique_key) = {schema}.key_hash(given_key)
        FOR UPDATE;
        IF FOUND AND owner.recurrence IS NULL THEN
            RETURN QUERY SELECT owner.id, 'duplicate';
            RETURN;
        ELSIF FOUND THEN
            UPDATE {schema}.jobs SET updated_ms = now_ms, payload = given_payload WHERE jobs.id = owner.id;
            IF NOT keeps_due OR owner.recurrence <> given_recurrence THEN
                UPDATE {schema}.jobs SET
                    due_ms = due, slot_ms = due, recurrence = given_recurrence,
                    revision = coalesce(owner.revision, 0) + 1
                WHERE jobs.id = owner.id;
            END IF;
            RETURN QUERY SELECT owner.id, 'updated';
            RETURN;
        END IF;
        INSERT INTO {schema}.jobs (
            id, queue, name, priority, due_ms, created_ms, updated_ms, payload, unique_key, tenant, options,
            recurrence, revision, slot_ms, runs, failed_runs
        ) VALUES (
            given_id, given_queue, given_name, given_priority, due, now_ms, now_ms, given_payload, given_key,
            given_tenant, given_options, given_recurrence, 0, due, 0, 0
        ) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF EXISTS (SELECT FROM {schema}.history WHERE history.id = given_id) THEN
                DELETE FROM {schema}.jobs WHERE jobs.id = given_id;
                CONTINUE;
            END IF;
            RETURN QUERY SELECT given_id, 'created';
            RETURN;
        END IF;
    END LOOP;
END $$;
