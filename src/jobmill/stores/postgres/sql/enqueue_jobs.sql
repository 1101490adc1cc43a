-- Insert jobs without recurrence and with different ids. An array in which no job has a value may be empty.
-- `helds`, `dependencieses` and `flows` are columns of jobs in flows; `awaiteds`, whether others of them wait for it.
-- `lanes`: their lanes, see lanes_joined. Neither `told` nor `inside`, the call is a transaction of its own.
-- at_ms is the time (NULL: the server's clock). `inside` a transaction of the caller's, its commit wakes sleepers.
-- Rows are returned only for jobs that were not created: their number, the id of the job that exists instead, and how:
-- 'exists', 'duplicate' or 'again'. One row where nothing was done: 'feed', a feed is on and the caller does not add
-- the events (`told`); 'elsewhere', this schema is not `home`. Beside others: 'look', the caller
-- must fill the lanes again after its commit.
-- Measured at 1,000 a call, three rounds, server time and log per job: ON CONFLICT 7.1 to 8.8 us and 450 B, plain
-- INSERT first 4.6 to 6.2 us and 402 B. The query of the history cannot be measured. Instructions of the server for one
-- job (callgrind): 393,600 with the arrays unnested, 352,600 without. With three more indexes for lanes 399,800; 373,900
-- since it calls no function and makes no query of the due times where neither is needed.
CREATE OR REPLACE FUNCTION {schema}.enqueue_jobs(
    at_ms bigint, told boolean, inside boolean, home bigint, ids text[], queues text[], names text[], priorities integer[],
    dues bigint[], delays bigint[], payloads text[], unique_keys text[], tenants text[], optionses text[], helds text[],
    dependencieses integer[], flows text[], awaiteds boolean[], lanes text[] DEFAULT '{}'
) RETURNS TABLE (number integer, id text, how text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    is_plain boolean := cardinality(unique_keys) + cardinality(dependencieses) + cardinality(flows) + cardinality(awaiteds)
        + cardinality(lanes) = 0;
    made text[];
    taken text[];
    final text[] := '{}';
BEGIN
    IF home IS NOT NULL THEN
        IF home IS DISTINCT FROM {home} THEN
            RETURN QUERY SELECT 0, NULL::text, 'elsewhere';
            RETURN;
        END IF;
    END IF;
    IF NOT told AND EXISTS (SELECT FROM {schema}.queues AS known WHERE known.feed AND known.queue = ANY (queues)) THEN
        RETURN QUERY SELECT 0, NULL::text, 'feed';
        RETURN;
    END IF;
    IF is_plain THEN
        -- Ids are almost always new, and a plain INSERT is cheaper than ON CONFLICT, which checks before it inserts.
        BEGIN
            IF cardinality(ids) = 1 THEN
                INSERT INTO {schema}.jobs (
                    id, queue, name, priority, due_ms, created_ms, updated_ms, payload, tenant, options
                )
                VALUES (
                    ids[1], queues[1], names[1], priorities[1], coalesce(dues[1], now_ms + delays[1]), now_ms, now_ms,
                    payloads[1], tenants[1], optionses[1]
                );
            ELSE
                INSERT INTO {schema}.jobs (
                    id, queue, name, priority, due_ms, created_ms, updated_ms, payload, tenant, options
                )
                SELECT
                    given.id, given.queue, given.name, given.priority, coalesce(given.due_ms, now_ms + given.delay_ms),
                    now_ms, now_ms, given.payload, given.tenant, given.options
                FROM unnest(ids, queues, names, priorities, dues, delays, payloads, tenants, optionses) WITH ORDINALITY
                    AS given (id, queue, name, priority, due_ms, delay_ms, payload, tenant, options, n)
                ORDER BY given.n;
            END IF;
            made := ids;
            IF {keeps_snapshot} THEN
                PERFORM {schema}.check_not_ended(ids);
            END IF;
            -- After the insert nobody else can make a job of this id. A query before it would miss a job that is
            -- settled in between.
            IF EXISTS (SELECT FROM {schema}.history WHERE history.id = ANY (ids)) THEN
                RAISE unique_violation;
            END IF;
        EXCEPTION WHEN unique_violation THEN
            made := NULL;
        END;
    END IF;
    WHILE made IS NULL LOOP
        WITH given AS (
            SELECT *, {new_joined} AS joined_ms
            FROM unnest(
                ids, queues, names, priorities, dues, delays, payloads, unique_keys, tenants, optionses, helds,
                dependencieses, flows, awaiteds, lanes
            ) WITH ORDINALITY AS one (
                id, queue, name, priority, due_ms, delay_ms, payload, unique_key, tenant, options, held, dependencies,
                flow, is_awaited, lane, n
            )
            WHERE one.id <> ALL (final)
        ),

        inserted AS (
            INSERT INTO {schema}.jobs (
                id, queue, name, priority, due_ms, created_ms, updated_ms, payload, unique_key, tenant, options, held,
                dependencies, flow, has_dependents, lane, slot, joined_ms
            )
            SELECT
                given.id, given.queue, given.name, given.priority,
                CASE WHEN given.joined_ms IS NULL THEN coalesce(given.due_ms, now_ms + given.delay_ms) ELSE {never_ms} END,
                now_ms, now_ms, given.payload, given.unique_key, given.tenant, given.options,
                coalesce('{"by":["lane"],"due":{"at_ms":' || given.joined_ms || '}}', given.held),
                given.dependencies, given.flow, nullif(given.is_awaited, false), given.lane,
                CASE WHEN given.joined_ms <= now_ms THEN -1 WHEN given.joined_ms > now_ms THEN -2 END, given.joined_ms
            FROM given ORDER BY given.n
            ON CONFLICT DO NOTHING
            RETURNING jobs.id
        )

        SELECT coalesce(array_agg(inserted.id), '{}') INTO made FROM inserted;
        PERFORM {schema}.check_not_ended(made);
        SELECT array_agg(history.id) INTO taken FROM {schema}.history WHERE history.id = ANY (made);
        EXIT WHEN taken IS NULL;
        -- All of them, because another job may be a duplicate only of a job that has to go.
        DELETE FROM {schema}.jobs WHERE jobs.id = ANY (made);
        final := final || taken;
        made := NULL;
    END LOOP;
    -- A condition with a query is a query as a whole, also where it is not needed.
    IF cardinality(dues) > 0 THEN
        IF EXISTS (SELECT FROM unnest(dues) AS given (due_ms) WHERE given.due_ms < now_ms) THEN
            INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    IF inside THEN
        PERFORM {schema}.wake(queues);
    END IF;
    IF is_plain THEN
        NULL;
    ELSIF cardinality(lanes) > 0 THEN
        IF {schema}.lanes_joined(now_ms, told, inside, queues, lanes) THEN
            RETURN QUERY SELECT 0, NULL::text, 'look';
        END IF;
    END IF;
    IF cardinality(made) = cardinality(ids) THEN
        RETURN;
    END IF;
    -- 'again': another job had the unique key at the insert, and does not have it any more.
    RETURN QUERY
    SELECT
        one.n::integer,
        coalesce(live.id, history.id, owner.id),
        CASE
            WHEN coalesce(live.id, history.id) IS NOT NULL THEN 'exists'
            WHEN owner.id IS NOT NULL THEN 'duplicate'
            ELSE 'again'
        END
    FROM unnest(ids, queues, names, unique_keys) WITH ORDINALITY AS one (id, queue, name, unique_key, n)
    LEFT JOIN {schema}.jobs AS live ON live.id = one.id
    LEFT JOIN {schema}.history ON history.id = one.id
    -- Apart, by the hash: if no job had a key when the table was analyzed, the planner would read all of them for each job.
    LEFT JOIN LATERAL (
        SELECT jobs.id FROM {schema}.jobs
        WHERE
            jobs.unique_key IS NOT NULL AND {schema}.key_hash(jobs.unique_key) = {schema}.key_hash(one.unique_key)
            AND (jobs.queue, jobs.name) IS NOT DISTINCT FROM (one.queue, one.name)
        OFFSET 0
    ) AS owner ON true
    WHERE one.id NOT IN (SELECT unnest(made));
END $$;

-- The same for clients of older versions.
CREATE OR REPLACE FUNCTION {schema}.enqueue_jobs(
    at_ms bigint, told boolean, inside boolean, home bigint, ids text[], queues text[], names text[], priorities integer[],
    dues bigint[], delays bigint[], payloads text[], unique_keys text[], tenants text[], optionses text[]
) RETURNS TABLE (number integer, id text, how text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM {schema}.enqueue_jobs(
        at_ms, told, inside, home, ids, queues, names, priorities, dues, delays, payloads, unique_keys, tenants,
        optionses, '{}', '{}', '{}', '{}'
    );
END $$;

-- In a transaction that keeps its first snapshot, only a unique index sees a job that has ended since then. Raise a
-- serialization failure where such a job has one of these ids, as PostgreSQL does for other changes. The probe is
-- undone.
CREATE OR REPLACE FUNCTION {schema}.check_not_ended(ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT {keeps_snapshot} THEN
        RETURN;
    END IF;
    BEGIN
        INSERT INTO {schema}.history (
            due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms, finished_ms, state, worker,
            id, queue, name, payload
        )
        SELECT 0, 0, 0, 0, 0, 0, 0, 0, 0, 'cancelled', '', one.id, '', '', 'null' FROM unnest(ids) AS one (id)
        ON CONFLICT DO NOTHING;
        RAISE SQLSTATE 'JOBML';
    EXCEPTION WHEN SQLSTATE 'JOBML' THEN
        NULL;
    END;
END $$;
