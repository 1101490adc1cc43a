-- Jobs have ended: set the edges that lead to them, at most `most` (NULL: all), and release the jobs that wait for no other
-- job. `states`: the states of those that the caller has just written to the history without an error; the others are read
-- there. `whose`: the dependents that are looked for (NULL: all). A job that is in no table counts as cancelled.
-- What it decides is in core/flows.py (verdict) and core/changes.py (resolved), and the contract compares both.
--
-- Locks, here and wherever edges are set: jobs that end, edges in the order of on_id, job_id and number, then dependents in
-- the order of their ids, whatever their state. Two places need no order: edges that lead to jobs which succeed, because all
-- others that set them lock these jobs first; and dependents of which all edges are set here, because no other transaction
-- sets edges of theirs. The look is a statement of its own. With a snapshot from before the locks,
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
    set_now record;
    rest text[];
BEGIN
    has_more := false;
    IF cardinality(states) = cardinality(ended) AND 'succeeded' = ALL (states) THEN
        -- The most frequent case: no job waits for any of these edges longer. With an array and not a join, see
        -- lease_found.sql: settle + claim of 100 jobs, of which one waits for 100, takes 27.4 us a job, and not 29.8.
        -- Without locks before the update: the caller has the jobs that end, and a purge passes over edges that are locked.
        WITH written AS (
            UPDATE {schema}.edges SET state = 'succeeded', error = NULL
            WHERE
                edges.ctid = ANY (ARRAY(
                    SELECT edge.place
                    FROM (SELECT one.id FROM unnest(ended) AS one (id) ORDER BY one.id COLLATE "C") AS final
                    CROSS JOIN LATERAL (
                        SELECT edges.ctid AS place FROM {schema}.edges
                        WHERE
                            edges.on_id = final.id AND edges.state = 'pending'
                            AND (whose IS NULL OR edges.job_id = ANY (whose))
                        ORDER BY edges.job_id, edges.number
                    ) AS edge
                    LIMIT most
                ))
                AND edges.state = 'pending'
            RETURNING edges.job_id, edges.on_id, edges.number
        ),

        -- These are all edges of a job only if they are its first ones.
        looked AS (
            SELECT
                written.job_id, count(*) AS all_set,
                CASE WHEN count(*) = max(written.number) + 1 THEN count(*) ELSE 0 END AS number
            FROM written GROUP BY written.job_id
        )

        SELECT
            sum(looked.all_set) AS edges_set, array_agg(looked.job_id) AS dependents, array_agg(looked.number) AS numbers,
            NULL::text[] AS failures, NULL::boolean[] AS at_onces,
            (SELECT count(*) FROM (SELECT FROM written GROUP BY written.on_id) AS one) AS reached
        INTO set_now FROM looked;
    ELSE
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
            SELECT edge.place, final.state, final.error FROM final CROSS JOIN LATERAL ({pending_edges}) AS edge LIMIT most
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
            sum(looked.all_set) AS edges_set, array_agg(looked.job_id) AS dependents, array_agg(looked.number) AS numbers,
            array_agg(looked.failure) AS failures, array_agg(looked.at_once) AS at_onces,
            (SELECT count(DISTINCT written.on_id) FROM written) AS reached
        INTO set_now FROM looked;
    END IF;
    edges_set := coalesce(set_now.edges_set, 0);

    IF edges_set > 0 THEN
        queues := {schema}.release_jobs(
            now_ms, set_now.dependents, set_now.numbers, set_now.failures, set_now.at_onces
        );
    END IF;

    IF edges_set = most THEN
        SELECT array_agg(one.id) INTO rest
        FROM unnest(ended) AS one (id)
        WHERE EXISTS (SELECT FROM {schema}.edges WHERE edges.on_id = one.id AND edges.state = 'pending');
        INSERT INTO {schema}.outbox (id) SELECT unnest(rest) ON CONFLICT DO NOTHING;
        has_more := rest IS NOT NULL;
    ELSIF set_now.reached < cardinality(ended) THEN
        -- The dependents of some have left the store meanwhile.
        PERFORM {schema}.unpin(ended);
    END IF;
END $$;

-- Edges of these jobs were set: release those that wait for no other job. `numbers`: how many of its edges were set now and
-- do not keep it waiting; if these are all, no other edge is read. `failures`: why a job must fail (NULL: it need not).
-- `at_onces`: it runs, whatever else it waits for. Returns the queues of jobs that are free now.
-- Measured at 100 settled jobs a call, of which each releases one, server time a job: 33.5 us; with a lock of the edges and of
-- the dependents before their updates 36.5; jobs that nobody waits for 12. The update of a row that three indexes have takes 9.
CREATE OR REPLACE FUNCTION {schema}.release_jobs(
    now_ms bigint, dependents text[], numbers bigint[], failures text[], at_onces boolean[]
) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    queues text[];
    done text[];
    others text[];
    -- Of the dependents that wait: where they are, and those that need a query of their edges first.
    places tid[];
    unsure_places tid[];
    unsure text[];
    reasons jsonb;
BEGIN
    IF failures IS NULL AND 0 < ANY (numbers) THEN
        -- The most frequent case, without a query before the update. No other transaction sets edges of these jobs.
        WITH freed AS (
            UPDATE {schema}.jobs SET {freed_values}
            FROM (
                SELECT one.id, one.number FROM unnest(dependents, numbers) AS one (id, number)
                WHERE one.number > 0 ORDER BY one.id COLLATE "C"
            ) AS given
            WHERE
                jobs.id = given.id AND jobs.dependencies = given.number AND jobs.lease_until_ms = 0
                AND jobs.held LIKE '{"by":["jobs"%'
            RETURNING {freed_columns}
        ), {freed_effects}

        SELECT array_agg(DISTINCT freed.queue) FILTER (WHERE freed.held IS NULL), array_agg(freed.id)
        INTO queues, done FROM freed;
        IF cardinality(done) = cardinality(dependents) THEN
            RETURN queues;
        END IF;
    END IF;
    -- No condition: a dependent is locked in whatever state the snapshot has it.
    SELECT
        array_agg(locked.place) FILTER (WHERE one.waits AND one.is_sure),
        array_agg(locked.place) FILTER (WHERE one.waits AND NOT one.is_sure),
        array_agg(given.id) FILTER (WHERE one.waits AND NOT one.is_sure),
        jsonb_object_agg(given.id, given.failure) FILTER (WHERE given.failure IS NOT NULL)
    INTO places, unsure_places, unsure, reasons
    FROM (
        SELECT * FROM unnest(dependents, numbers, failures, at_onces) AS one (id, number, failure, at_once)
        WHERE done IS NULL OR one.id <> ALL (done)
        ORDER BY one.id COLLATE "C"
    ) AS given CROSS JOIN LATERAL (
        SELECT jobs.ctid AS place, jobs.dependencies, jobs.lease_until_ms, jobs.held
        FROM {schema}.jobs WHERE jobs.id = given.id FOR NO KEY UPDATE
    ) AS locked CROSS JOIN LATERAL (
        SELECT
            locked.lease_until_ms = 0 AND locked.held LIKE '{"by":["jobs"%' AS waits,
            coalesce(given.failure IS NOT NULL OR given.at_once OR given.number = locked.dependencies, false) AS is_sure
    ) AS one;
    IF unsure IS NOT NULL THEN
        SELECT places || array_agg(given.place) INTO places
        FROM unnest(unsure, unsure_places) AS given (id, place)
        WHERE
            coalesce(
                (
                    SELECT true
                    FROM (
                        SELECT edges.* FROM {schema}.edges WHERE edges.job_id = given.id
                        ORDER BY edges.job_id DESC, edges.number DESC LIMIT 100
                    ) AS edges
                    WHERE {is_open} LIMIT 1
                ),
                (
                    SELECT true
                    FROM (
                        SELECT edges.* FROM {schema}.edges WHERE edges.job_id = given.id
                        ORDER BY edges.job_id, edges.number LIMIT 100
                    ) AS edges
                    WHERE {is_open} LIMIT 1
                ),
                (SELECT true FROM {schema}.edges WHERE edges.job_id = given.id AND {is_open} LIMIT 1)
            ) IS NULL;
    END IF;
    IF places IS NULL THEN
        RETURN queues;
    END IF;
    WITH freed AS (
        UPDATE {schema}.jobs SET {freed_values} WHERE jobs.ctid = ANY (places) RETURNING {freed_columns}
    ), {freed_effects}

    SELECT array_agg(DISTINCT freed.queue) INTO others FROM freed WHERE freed.held IS NULL;
    RETURN queues || others;
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
