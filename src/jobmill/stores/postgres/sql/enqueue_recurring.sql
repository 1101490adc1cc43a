-- Insert a job with a recurrence, or write its recurrence, payload and due time to the live job that has its unique
-- key. given_recurrence is JSON without a revision. One row: the id of the job, and how; 'feed' and 'elsewhere' as in
-- enqueue_jobs. A live job that has these values already is not written, and so not locked until the commit. Whether a
-- handler declared the recurrence is no part of the rule. A pinned rule stays, and the given one is stored beside it.
CREATE OR REPLACE FUNCTION {schema}.enqueue_recurring(
    at_ms bigint, told boolean, inside boolean, home bigint, given_id text, given_queue text, given_name text,
    given_priority integer, given_due bigint, given_delay bigint, given_payload text, given_key text, given_tenant text,
    given_options text, given_recurrence text, keeps_due boolean, given_lane text DEFAULT NULL
) RETURNS TABLE (id text, how text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    due bigint := coalesce(given_due, now_ms + given_delay);
    mark text := ',"declared":true';
    pin text := '%,"pinned":true%';
    given_rule text := replace(given_recurrence, mark, '');
    owner record;
    joined bigint := CASE WHEN given_lane IS NOT NULL THEN greatest(due, now_ms) END;
BEGIN
    IF home IS NOT NULL THEN
        IF home IS DISTINCT FROM {home} THEN
            RETURN QUERY SELECT NULL::text, 'elsewhere';
            RETURN;
        END IF;
    END IF;
    IF NOT told AND EXISTS (SELECT FROM {schema}.queues AS known WHERE known.feed AND known.queue = given_queue) THEN
        RETURN QUERY SELECT NULL::text, 'feed';
        RETURN;
    END IF;
    IF inside THEN
        PERFORM {schema}.wake(ARRAY[given_queue]);
    END IF;
    IF due < now_ms THEN
        INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
    -- Repeated until the job is inserted or the live job is written: that one may end, or be inserted, in between.
    LOOP
        IF EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = given_id)
            OR EXISTS (SELECT FROM {schema}.history WHERE history.id = given_id)
        THEN
            RETURN QUERY SELECT given_id, 'exists';
            RETURN;
        END IF;
        SELECT
            jobs.id, jobs.queue, jobs.lane, jobs.recurrence IS NOT NULL AS recurs,
            jobs.recurrence LIKE pin AS is_pinned, (keeps_due OR jobs.recurrence LIKE pin) AND jobs.payload = given_payload
            AND jobs.recurrence = {schema}.restated(jobs.recurrence, given_recurrence) AS has_all
        INTO owner
        FROM {schema}.jobs
        WHERE
            jobs.queue = given_queue AND jobs.name = given_name AND jobs.unique_key IS NOT NULL
            AND {schema}.key_hash(jobs.unique_key) = {schema}.key_hash(given_key);
        IF FOUND AND NOT owner.recurs THEN
            RETURN QUERY SELECT owner.id, 'duplicate';
            RETURN;
        ELSIF FOUND THEN
            IF NOT owner.has_all THEN
                -- The UPDATE compares with the row as it is once it is locked. A held job gets its due time later.
                UPDATE {schema}.jobs SET
                    updated_ms = now_ms, payload = given_payload,
                    recurrence = {schema}.restated(jobs.recurrence, given_recurrence),
                    (due_ms, slot_ms, revision, held) = (
                        SELECT
                            CASE
                                WHEN same OR jobs.held IS NOT NULL THEN jobs.due_ms
                                WHEN moves THEN {never_ms}
                                -- It runs: see shown_due_ms.
                                WHEN jobs.lease_until_ms > 0 AND due > now_ms THEN -due
                                ELSE due
                            END,
                            CASE WHEN same THEN jobs.slot_ms ELSE due END,
                            coalesce(jobs.revision, 0) + CASE WHEN same THEN 0 ELSE 1 END,
                            CASE
                                WHEN same THEN jobs.held
                                WHEN moves THEN '{"by":["lane"],"due":{"at_ms":' || due || '}}'
                                ELSE {held_until}
                            END
                        FROM (
                            SELECT
                                jobs.recurrence LIKE pin
                                OR (keeps_due AND replace(jobs.recurrence, mark, '') = given_rule) AS same,
                                -- It gives up its slot.
                                jobs.lane IS NOT NULL AND jobs.held IS NULL AND jobs.lease_until_ms = 0 AS moves
                        ) AS compared
                    )
                WHERE jobs.id = owner.id AND jobs.recurrence IS NOT NULL
                RETURNING jobs.recurrence LIKE pin INTO owner.is_pinned;
                CONTINUE WHEN NOT FOUND;
                IF owner.lane IS NOT NULL AND {schema}.lanes_joined(
                    now_ms, told, inside, ARRAY[owner.queue], ARRAY[owner.lane]
                ) THEN
                    -- The caller does not know this lane.
                    PERFORM {schema}.lanes_joined(now_ms, told, true, ARRAY[owner.queue], ARRAY[owner.lane]);
                    RETURN QUERY SELECT NULL::text, 'look';
                END IF;
            END IF;
            RETURN QUERY SELECT owner.id, CASE WHEN owner.is_pinned THEN 'pinned' ELSE 'updated' END;
            RETURN;
        END IF;
        INSERT INTO {schema}.jobs (
            id, queue, name, priority, due_ms, created_ms, updated_ms, payload, unique_key, tenant, options,
            recurrence, revision, slot_ms, runs, failed_runs, lane, held, slot, joined_ms
        ) VALUES (
            given_id, given_queue, given_name, given_priority, CASE WHEN joined IS NULL THEN due ELSE {never_ms} END,
            now_ms, now_ms, given_payload, given_key,
            given_tenant, given_options, given_recurrence, 0, due, 0, 0, given_lane,
            '{"by":["lane"],"due":{"at_ms":' || joined || '}}',
            CASE WHEN joined <= now_ms THEN -1 WHEN joined > now_ms THEN -2 END, joined
        ) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM {schema}.check_not_ended(ARRAY[given_id]);
            IF EXISTS (SELECT FROM {schema}.history WHERE history.id = given_id) THEN
                DELETE FROM {schema}.jobs WHERE jobs.id = given_id;
                CONTINUE;
            END IF;
            IF given_lane IS NOT NULL AND {schema}.lanes_joined(
                now_ms, told, inside, ARRAY[given_queue], ARRAY[given_lane]
            ) THEN
                RETURN QUERY SELECT NULL::text, 'look';
            END IF;
            RETURN QUERY SELECT given_id, 'created';
            RETURN;
        END IF;
    END LOOP;
END $$;

-- A recurrence after code has stated one: a pinned one keeps its rule, and has the stated one beside it. All as JSON, as
-- core/recurrence.py writes it: quotes in a key are escaped, so the marks are never part of one.
CREATE OR REPLACE FUNCTION {schema}.restated(present text, stated text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN present LIKE '%,"pinned":true%'
            THEN split_part(replace(present, ',"declared":true', ''), ',"pinned":true', 1)
            || CASE WHEN stated LIKE '%,"declared":true%' THEN ',"declared":true' ELSE '' END
            || ',"pinned":true,"stated":' || replace(stated, ',"declared":true', '') || '}'
        ELSE stated
    END;
