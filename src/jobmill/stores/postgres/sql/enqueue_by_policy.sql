-- Enqueue jobs with different unique keys, as their policies say. `dos` says what happens to the live job that has the key
-- (`owners`): 'insert', there is none; 'replace', it takes over the payload, and the due time where `moves`; 'cancel' (with
-- `owner_dues`, `expireses`, `lasts` and `leavings`, as in cancel_jobs); 'pass', it loses the key. `versions`: what it was like
-- when this was decided. `fors`: for how long the key is taken. The other parameters and the rows are those of enqueue_jobs;
-- 'updated', the owner took over the payload; 'again', nothing was done, because the owner or the key is not as it was.
--
-- Locks: owners in the order of live_matches, what a cancel locks, taken keys, and new keys, both in the order of keys. So
-- the jobs are inserted in that order, with numbers in the order of the call.
-- A producer may call this. So only the live job that has the key of a new job is changed, and not what holds it.
CREATE OR REPLACE FUNCTION {schema}.enqueue_by_policy(
    at_ms bigint, told boolean, inside boolean, ids text[], queues text[], names text[], priorities integer[],
    dues bigint[], delays bigint[], payloads text[], unique_keys text[], tenants text[], optionses text[],
    awaiteds boolean[], dos text[], owners text[], versions text[], moves boolean[], owner_dues bigint[],
    expireses bigint[], lasts integer[], leavings boolean[], fors bigint[], lanes text[] DEFAULT '{}'
) RETURNS TABLE (number integer, id text, how text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    -- For each job, whether its owner is as it was.
    sames boolean[];
    cancelled record;
    took text[];
    made text[];
    moved record;
BEGIN
    IF NOT told AND EXISTS (SELECT FROM {schema}.queues AS known WHERE known.feed AND known.queue = ANY (queues)) THEN
        RETURN QUERY SELECT 0, NULL::text, 'feed';
        RETURN;
    END IF;
    PERFORM FROM {schema}.jobs WHERE jobs.id = ANY (owners) ORDER BY jobs.lease_until_ms = 0, jobs.id FOR UPDATE;
    -- The join is only by id: other columns would let the planner choose another index.
    SELECT
        array_agg(
            (
                jobs.queue = one.queue AND jobs.name = one.name AND jobs.unique_key = one.unique_key
                AND jobs.recurrence IS NULL AND {owner_version} = one.version
            ) IS TRUE
            ORDER BY one.n
        )
    INTO sames
    FROM unnest(queues, names, unique_keys, owners, versions) WITH ORDINALITY
        AS one (queue, name, unique_key, owner, version, n)
    LEFT JOIN {schema}.jobs ON jobs.id = one.owner;

    UPDATE {schema}.jobs SET
        payload = one.payload, updated_ms = now_ms,
        due_ms = CASE
            WHEN NOT one.move OR jobs.held IS NOT NULL THEN jobs.due_ms
            WHEN jobs.lane IS NOT NULL THEN {never_ms}
            ELSE coalesce(one.due_ms, now_ms + one.delay_ms)
        END,
        held = CASE
            WHEN NOT one.move THEN jobs.held
            -- It gives up its slot.
            WHEN jobs.held IS NULL AND jobs.lane IS NOT NULL
                THEN '{"by":["lane"],"due":{"at_ms":' || coalesce(one.due_ms, now_ms + one.delay_ms) || '}}'
            ELSE {held_with_due}
        END
    FROM unnest(dos, owners, sames, payloads, moves, dues, delays)
        AS one (do_, owner, is_same, payload, move, due_ms, delay_ms)
    WHERE one.do_ = 'replace' AND one.is_same AND jobs.id = one.owner;
    -- A claim passes over a locked job; and a job with an earlier due time may stand before the position of a cursor.
    IF FOUND OR EXISTS (SELECT FROM unnest(dues) AS given (due_ms) WHERE given.due_ms < now_ms) THEN
        INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;

    UPDATE {schema}.jobs SET unique_key = NULL
    FROM unnest(dos, owners, sames) AS one (do_, owner, is_same)
    WHERE one.do_ = 'pass' AND one.is_same AND jobs.id = one.owner;

    SELECT
        array_agg(one.owner) AS ids, array_agg(one.due_ms) AS dues, array_agg(one.expires_ms) AS expireses,
        array_agg(one.keep_last) AS lasts, array_agg(one.owner) FILTER (WHERE one.leaves) AS leaving
    INTO cancelled
    FROM unnest(dos, owners, sames, owner_dues, expireses, lasts, leavings)
        AS one (do_, owner, is_same, due_ms, expires_ms, keep_last, leaves)
    WHERE one.do_ = 'cancel' AND one.is_same;
    IF cancelled.ids IS NOT NULL THEN
        PERFORM {schema}.wake(
            {schema}.cancel_jobs(
                now_ms, cancelled.ids, cancelled.dues, cancelled.expireses, cancelled.lasts, cancelled.leaving
            )
        );
        PERFORM pg_notify('{channel}_hints', json_build_object('cancelled', json_build_array(one.id))::text)
        FROM unnest(cancelled.ids) AS one (id);
    END IF;

    WITH taken AS (
        INSERT INTO {schema}.taken_keys (hash, queue, name, id, until_ms)
        SELECT {schema}.key_hash(one.unique_key), one.queue, one.name, one.id, now_ms + one.for_ms
        FROM unnest(ids, queues, names, unique_keys, fors) AS one (id, queue, name, unique_key, for_ms)
        WHERE one.for_ms IS NOT NULL
        ORDER BY {schema}.key_hash(one.unique_key), one.queue COLLATE "C", one.name COLLATE "C"
        ON CONFLICT (hash, queue, name) DO UPDATE SET id = excluded.id, until_ms = excluded.until_ms
        WHERE taken_keys.until_ms <= now_ms
        RETURNING taken_keys.id
    )

    SELECT coalesce(array_agg(taken.id), '{}') INTO took FROM taken;

    WITH numbered AS MATERIALIZED (
        SELECT nextval(pg_get_serial_sequence('{schema}.jobs', 'seq')) AS seq, given.*
        FROM (
            SELECT one.*, {new_lane_joined} AS joined_ms
            FROM unnest(
                ids, queues, names, priorities, dues, delays, payloads, unique_keys, tenants, optionses, awaiteds, dos,
                sames, fors, lanes
            ) WITH ORDINALITY AS one (
                id, queue, name, priority, due_ms, delay_ms, payload, unique_key, tenant, options, is_awaited, do_,
                is_same, for_ms, lane, n
            )
            WHERE
                (one.do_ = 'insert' AND (one.for_ms IS NULL OR one.id IN (SELECT unnest(took))))
                OR (one.do_ IN ('cancel', 'pass') AND one.is_same)
            ORDER BY one.n
        ) AS given
    ),

    inserted AS (
        INSERT INTO {schema}.jobs (
            seq, id, queue, name, priority, due_ms, created_ms, updated_ms, payload, unique_key, tenant, options,
            has_dependents, lane, held, slot, joined_ms
        ) OVERRIDING SYSTEM VALUE
        SELECT
            one.seq, one.id, one.queue, one.name, one.priority,
            CASE WHEN one.joined_ms IS NULL THEN coalesce(one.due_ms, now_ms + one.delay_ms) ELSE {never_ms} END, now_ms,
            now_ms, one.payload, one.unique_key, one.tenant, one.options, nullif(one.is_awaited, false), one.lane,
            '{"by":["lane"],"due":{"at_ms":' || one.joined_ms || '}}',
            CASE WHEN one.joined_ms <= now_ms THEN -1 WHEN one.joined_ms > now_ms THEN -2 END, one.joined_ms
        FROM numbered AS one
        ORDER BY {schema}.key_hash(one.unique_key), one.queue COLLATE "C", one.name COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING jobs.id
    )

    SELECT coalesce(array_agg(inserted.id), '{}') INTO made FROM inserted;
    PERFORM {schema}.check_not_ended(made);
    -- Nobody else can take a key that its owner loses here, and none of these ids was stored when this was decided.
    IF EXISTS (SELECT FROM {schema}.history WHERE history.id = ANY (made)) OR EXISTS (
        SELECT FROM unnest(ids, dos, sames) AS one (id, do_, is_same)
        WHERE one.do_ IN ('cancel', 'pass') AND one.is_same AND one.id NOT IN (SELECT unnest(made))
    ) THEN
        RAISE 'jobs of the same ids were enqueued at the same time' USING ERRCODE = 'serialization_failure';
    END IF;
    DELETE FROM {schema}.taken_keys
    WHERE taken_keys.id = ANY (ARRAY(SELECT unnest(took) EXCEPT SELECT unnest(made)));
    IF inside THEN
        PERFORM {schema}.wake(queues);
    END IF;
    SELECT array_agg(one.queue) AS queues, array_agg(one.lane) AS lanes INTO moved
    FROM (
        SELECT given.queue, given.lane FROM unnest(queues, lanes) AS given (queue, lane)
        UNION ALL
        SELECT jobs.queue, jobs.lane FROM {schema}.jobs WHERE jobs.id = ANY (owners)
    ) AS one
    WHERE one.lane IS NOT NULL;
    IF moved.lanes IS NOT NULL AND {schema}.lanes_joined(now_ms, told, inside, moved.queues, moved.lanes) THEN
        -- The caller does not know the lanes of the owners.
        PERFORM {schema}.lanes_joined(now_ms, told, true, moved.queues, moved.lanes);
        RETURN QUERY SELECT 0, NULL::text, 'look';
    END IF;
    RETURN QUERY
    SELECT
        one.n::integer, one.owner, CASE WHEN one.do_ = 'replace' AND one.is_same THEN 'updated' ELSE 'again' END
    FROM unnest(ids, owners, dos, sames) WITH ORDINALITY AS one (id, owner, do_, is_same, n)
    WHERE one.id NOT IN (SELECT unnest(made));
END $$;
