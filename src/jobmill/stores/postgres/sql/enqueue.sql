-- Enqueue from plain SQL, in the caller's transaction: SELECT {schema}.enqueue('send_email', '{"to": "ada"}').
-- Returns the id of the job; of the live job that has its unique key, where there is one (NULL where that is no uuid).
CREATE OR REPLACE FUNCTION {schema}.enqueue(
    name text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default', due_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 0, unique_key text DEFAULT NULL, tenant text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    new_id text;
    due_ms bigint := floor(extract(epoch FROM due_at) * 1000);
    answer record;
BEGIN
    PERFORM {schema}.check_text('name', name, 255, '[[:space:][:cntrl:]]', false);
    PERFORM {schema}.check_text('queue', queue, 255, '[[:space:][:cntrl:]:]', false);
    PERFORM {schema}.check_text('unique_key', unique_key, 1024, '[[:cntrl:]]', true);
    PERFORM {schema}.check_text('tenant', tenant, 255, '[[:cntrl:]]', true);
    IF payload IS NULL THEN
        RAISE 'payload: expected JSON, got NULL' USING HINT = 'for a handler without parameters leave it out, or give {}';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN 0 AND 2097151 THEN
        RAISE 'priority: expected a whole number from 0 to 2097151, got %', priority;
    END IF;
    LOOP
        new_id := {schema}.new_id();
        SELECT given.id, given.how INTO answer
        FROM {schema}.enqueue_jobs(
            NULL, true, true, ARRAY[new_id], ARRAY[queue], ARRAY[name], ARRAY[priority], ARRAY[due_ms],
            ARRAY[0]::bigint[], ARRAY[payload::text], ARRAY[unique_key], ARRAY[tenant], '{}'
        ) AS given;
        IF NOT FOUND THEN
            INSERT INTO {schema}.events (queue, event)
            SELECT
                known.queue,
                json_build_object(
                    'type', 'enqueued', 'job_id', new_id, 'name', enqueue.name, 'queue', known.queue,
                    'at_ms', {schema}.now_ms()
                )::text
            FROM {schema}.queues AS known WHERE known.queue = enqueue.queue AND known.feed;
            RETURN new_id::uuid;
        END IF;
        IF answer.how = 'duplicate' THEN
            RETURN CASE WHEN answer.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN answer.id::uuid END;
        END IF;
    END LOOP;
END $$;
