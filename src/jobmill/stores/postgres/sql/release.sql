-- Jobs have ended: set the edges that lead to them, at most `most` (NULL: all), and release the jobs that wait for no other
-- job. `whose`: the dependents that are looked for (NULL: all). A job that is in no table counts as cancelled.
-- What it decides is in core/flows.py (verdict) and core/changes.py (resolved), and the contract compares both.
--
-- Locks, here and wherever edges are set: jobs that end, edges in the order of on_id, job_id and number, then dependents in
-- the order of their ids, whatever their state. The look is a statement of its own. With a snapshot from before the locks,
-- two transactions that set the last two edges of a job would each see the edge of the other as pending. A dependent that
-- does not wait in the snapshot may wait again when its lock is free.
-- The look starts at the last edge: what was enqueued last usually ends last, and entries of edges that were set since the
-- last vacuum are before it. Measured on 10,000 edges of one job under a held snapshot: 71 us a job, from the start 128.
CREATE OR REPLACE FUNCTION {schema}.release(
    now_ms bigint, ended text[], whose text[], most bigint,
    OUT edges_set bigint, OUT queues text[], OUT has_more boolean
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    reached bigint;
    dependents text[];
    failures text[];
    at_onces boolean[];
    rest text[];
BEGIN
    has_more := false;
    WITH final AS MATERIALIZED (
        SELECT
            one.id, coalesce(history.state, 'cancelled') AS state,
            CASE WHEN history.state = 'failed' THEN left(split_part(history.error, E'\n', 1), 500) END AS error
        FROM unnest(ended) AS one (id) LEFT JOIN {schema}.history ON history.id = one.id
        WHERE history.id IS NOT NULL OR NOT EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = one.id)
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
            edges.job_id, count(*) AS number,
            (
                array_agg({dependency_error} ORDER BY edges.number)
                FILTER (WHERE edges.state <> 'succeeded' AND edges.if_failed = 'fail')
            )[1] AS failure,
            bool_or(edges.state <> 'succeeded' AND edges.if_failed = 'now') AS at_once
        FROM written AS edges GROUP BY edges.job_id
    )

    SELECT
        coalesce(sum(looked.number), 0), array_agg(looked.job_id), array_agg(looked.failure), array_agg(looked.at_once),
        (SELECT count(DISTINCT written.on_id) FROM written)
    INTO edges_set, dependents, failures, at_onces, reached FROM looked;

    IF edges_set > 0 THEN
        queues := {schema}.release_jobs(now_ms, dependents, failures, at_onces);
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

-- Edges of these jobs were set: release those that wait for no other job. `failures`: why a job must fail (NULL: it need
-- not); `at_onces`: it runs, whatever else it waits for. Returns the queues of jobs that are free now.
CREATE OR REPLACE FUNCTION {schema}.release_jobs(
    now_ms bigint, dependents text[], failures text[], at_onces boolean[]
) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    queues text[];
BEGIN
    PERFORM FROM {schema}.jobs WHERE jobs.id = ANY (dependents) ORDER BY jobs.id FOR NO KEY UPDATE;
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
        FROM unnest(dependents, failures, at_onces) AS given (id, failure, at_once)
        WHERE
            jobs.id = given.id AND jobs.lease_until_ms = 0 AND jobs.held LIKE '{"by":["jobs"%'
            AND (
                given.failure IS NOT NULL OR given.at_once
                OR (
                    SELECT true FROM {schema}.edges
                    WHERE edges.job_id = given.id AND {is_open}
                    ORDER BY edges.job_id DESC, edges.number DESC LIMIT 1
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
        FROM freed JOIN {schema}.queues AS known ON known.queue = freed.queue AND known.feed
        WHERE freed.held IS NULL
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
        FROM {schema}.release(now_ms, ended, NULL, most) AS one;
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
        FROM {schema}.release(now_ms, awaited, NULL, {max_released}) AS one;
    END IF;
END $$;
