-- Jobs have ended: set the edges that lead to them, at most `most` (NULL: all), and release the jobs that wait for no other
-- job. `states`: the states of those that the caller has just written to the history without an error; the others are read
-- there. `whose`: the dependents that are looked for (NULL: all). A job that is in no table counts as cancelled.
-- What it decides is in core/flows.py (verdict) and core/changes.py (resolved), and the contract compares both.
--
-- Locks, here and wherever edges are set: jobs that end, edges in the order of on_id, job_id and number, then dependents in
-- the order of their ids, whatever their state. The look is a statement of its own. With a snapshot from before the locks,
-- two transactions that set the last two edges of a job would each see the edge of the other as pending. A dependent that
-- does not wait in the snapshot may wait again when its lock is free.
-- The look examines the last edges: what was enqueued last usually ends last. Then the first ones, and then all.
CREATE OR REPLACE FUNCTION {schema}.release(
    now_ms bigint, ended text[], states text[], whose text[], most bigint,
    OUT edges_set bigint, OUT queues text[], OUT has_more boolean
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    reached bigint;
    dependents text[];
    numbers bigint[];
    failures text[];
    at_onces boolean[];
    rest text[];
BEGIN
    has_more := false;
    WITH final AS MATERIALIZED (
        SELECT
            one.id, coalesce(one.state, history.state, 'cancelled') AS state,
            CASE WHEN history.state = 'failed' THEN left(split_part(history.error, E'\n', 1), 500) END AS error
        FROM unnest(ended, states) AS one (id, state)
        -- As a further condition of the join, it would be evaluated after the index was read.
        LEFT JOIN {schema}.history ON history.id = CASE WHEN one.state IS NULL THEN one.id END
        WHERE
            one.state IS NOT NULL OR history.id IS NOT NULL
            OR NOT EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = one.id)
        ORDER BY one.id COLLATE "C"
    ),

    chosen AS MATERIALIZED (
        SELECT edge.place, final.state, final.error
        FROM final CROSS JOIN LATERAL (
            SELECT edges.ctid AS place FROM {schema}.edges
            WHERE edges.on_id = final.id AND edges.state = 'pending' AND (whose IS NULL OR edges.job_id = ANY (whose))
            ORDER BY edges.job_id, edges.number FOR UPDATE
        ) AS edge
        LIMIT most
    ),

    written AS (
        UPDATE {schema}.edges SET state = chosen.state, error = chosen.error
        FROM chosen WHERE edges.ctid = chosen.place
        RETURNING edges.job_id, edges.number, edges.on_id, edges.if_failed, edges.error, edges.state
    ),

    looked AS (
        SELECT
            edges.job_id, count(*) AS all_set, count(*) FILTER (WHERE NOT {is_open}) AS number,
            (
                array_agg({dependency_error} ORDER BY edges.number)
                FILTER (WHERE edges.state <> 'succeeded' AND edges.if_failed = 'fail')
            )[1] AS failure,
            bool_or(edges.state <> 'succeeded' AND edges.if_failed = 'now') AS at_once
        FROM written AS edges GROUP BY edges.job_id
    )

    SELECT
        coalesce(sum(looked.all_set), 0), array_agg(looked.job_id), array_agg(looked.number), array_agg(looked.failure),
        array_agg(looked.at_once), (SELECT count(DISTINCT written.on_id) FROM written)
    INTO edges_set, dependents, numbers, failures, at_onces, reached FROM looked;

    IF edges_set > 0 THEN
        queues := {schema}.release_jobs(now_ms, dependents, numbers, failures, at_onces);
    END IF;

    IF edges_set = most THEN
        SELECT array_agg(one.id) INTO rest
        FROM unnest(ended) AS one (id)
        WHERE EXISTS (SELECT FROM {schema}.edges WHERE edges.on_id = one.id AND edges.state = 'pending');
        INSERT INTO {schema}.outbox (id) SELECT unnest(rest) ON CONFLICT DO NOTHING;
        has_more := rest IS NOT NULL;
    ELSIF reached < cardinality(ended) THEN
        -- The dependents of some have left the store meanwhile.
        PERFORM {schema}.unpin(ended);
    END IF;
END $$;

-- Edges of these jobs were set: release those that wait for no other job. `numbers`: how many of its edges were set now and
-- do not keep it waiting; if these are all, no other edge is read. `failures`: why a job must fail (NULL: it need not).
-- `at_onces`: it runs, whatever else it waits for. Returns the queues of jobs that are free now.
-- Measured at 100 jobs a call with one edge each, server time a job: 16 us, of which the update of a row that three indexes
-- have takes 9. With the look at the edges of each job, and its row found by its id again: 19.
CREATE OR REPLACE FUNCTION {schema}.release_jobs(
    now_ms bigint, dependents text[], numbers bigint[], failures text[], at_onces boolean[]
) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    queues text[];
    places tid[];
    are_sure boolean[];
BEGIN
    SELECT
        array_agg(locked.place), array_agg(given.failure),
        array_agg(given.failure IS NOT NULL OR given.at_once OR given.number = locked.dependencies)
    INTO places, failures, are_sure
    FROM (
        SELECT * FROM unnest(dependents, numbers, failures, at_onces) AS one (id, number, failure, at_once)
        ORDER BY one.id COLLATE "C"
    ) AS given CROSS JOIN LATERAL (
        SELECT jobs.ctid AS place, jobs.dependencies FROM {schema}.jobs WHERE jobs.id = given.id FOR NO KEY UPDATE
    ) AS locked;
    WITH freed AS (
        UPDATE {schema}.jobs SET
            held = CASE WHEN jobs.held LIKE '{"by":["jobs",%' THEN '{"by":[' || substr(jobs.held, 15) END,
            due_ms = CASE
                WHEN jobs.held LIKE '{"by":["jobs",%' THEN jobs.due_ms
                ELSE coalesce(
                    (jobs.held::json #>> '{due,at_ms}')::bigint,
                    now_ms + coalesce((jobs.held::json #>> '{due,after_ms}')::bigint, 0)
                )
            END,
            doomed = coalesce(given.failure, jobs.doomed), updated_ms = now_ms
        FROM unnest(places, failures, are_sure) AS given (place, failure, is_sure)
        WHERE
            jobs.ctid = given.place AND jobs.lease_until_ms = 0 AND jobs.held LIKE '{"by":["jobs"%'
            AND (
                given.is_sure
                OR coalesce(
                    (
                        SELECT true
                        FROM (
                            SELECT edges.* FROM {schema}.edges WHERE edges.job_id = jobs.id
                            ORDER BY edges.job_id DESC, edges.number DESC LIMIT 100
                        ) AS edges
                        WHERE {is_open} LIMIT 1
                    ),
                    (
                        SELECT true
                        FROM (
                            SELECT edges.* FROM {schema}.edges WHERE edges.job_id = jobs.id
                            ORDER BY edges.job_id, edges.number LIMIT 100
                        ) AS edges
                        WHERE {is_open} LIMIT 1
                    ),
                    (SELECT true FROM {schema}.edges WHERE edges.job_id = jobs.id AND {is_open} LIMIT 1)
                ) IS NULL
            )
        RETURNING jobs.id, jobs.name, jobs.queue, jobs.errors, jobs.held
    ),

    told AS (
        INSERT INTO {schema}.events (queue, event)
        SELECT
            freed.queue,
            json_build_object(
                'type', 'released', 'job_id', freed.id, 'name', freed.name, 'queue', freed.queue, 'at_ms', now_ms,
                'attempt', freed.errors + 1
            )::text
        FROM freed
        WHERE
            freed.held IS NULL
            AND freed.queue = ANY (ARRAY(SELECT known.queue FROM {schema}.queues AS known WHERE known.feed))
    ),

    -- They get the position in which they were enqueued.
    rewound AS (
        INSERT INTO {schema}.rewinds SELECT pg_current_xact_id() FROM freed WHERE freed.held IS NULL LIMIT 1
        ON CONFLICT DO NOTHING
    )

    SELECT array_agg(DISTINCT freed.queue) INTO queues FROM freed WHERE freed.held IS NULL;
    RETURN queues;
END $$;

-- Continue what `release` has left. It skips what another process is releasing now.
CREATE OR REPLACE FUNCTION {schema}.flush_outbox(
    now_ms bigint, most bigint, OUT edges_set bigint, OUT queues text[]
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    ended text[];
BEGIN
    SELECT array_agg(one.id) INTO ended
    FROM (SELECT outbox.id FROM {schema}.outbox LIMIT 100 FOR UPDATE SKIP LOCKED) AS one;
    edges_set := 0;
    IF ended IS NOT NULL THEN
        SELECT one.edges_set, one.queues INTO flush_outbox.edges_set, flush_outbox.queues
        FROM {schema}.release(now_ms, ended, '{}', NULL, most) AS one;
        DELETE FROM {schema}.outbox
        WHERE
            outbox.id = ANY (ended)
            AND NOT EXISTS (SELECT FROM {schema}.edges WHERE edges.on_id = outbox.id AND edges.state = 'pending');
    END IF;
END $$;

-- Live jobs have become final other than by a settlement: keep those that other jobs wait for, and release these.
CREATE OR REPLACE FUNCTION {schema}.release_dependents(
    now_ms bigint, these text[], OUT queues text[], OUT has_more boolean
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    awaited text[];
BEGIN
    SELECT array_agg(history.id) INTO awaited
    FROM {schema}.history WHERE history.id = ANY (these) AND history.has_dependents;
    IF awaited IS NOT NULL THEN
        PERFORM {schema}.pin(awaited);
        SELECT one.queues, one.has_more INTO release_dependents.queues, release_dependents.has_more
        FROM {schema}.release(now_ms, awaited, '{}', NULL, {max_released}) AS one;
    END IF;
END $$;
