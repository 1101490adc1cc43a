-- Lanes in an exchange: slots are handed over, and lanes are filled before the claim. See lanes.sql.

-- Give the slots that jobs have ended to the next jobs of their lanes. `priorities`, `joineds` and `seqs` say where those jobs
-- stood: what stood before them is gone, so the search begins there, unless something more urgent has come, or the caller
-- says `from_start`. (While an old snapshot is held, each index entry before it costs a visit to the table. Measured: from the
-- start 114 us a job, and 426 after 19,000; from there 101 and 85.)
-- `look_x`: lanes whose slots must be counted, by fill_lanes in the same transaction. `again_x`: lanes with a slot that nobody
-- took. The caller looks at them again after its commit.
CREATE OR REPLACE FUNCTION {schema}.hand_over(
    now_ms bigint, its_queues text[], its_lanes text[], priorities integer[], joineds bigint[], seqs bigint[],
    from_start boolean, OUT given integer, OUT given_queues text[], OUT look_queues text[], OUT look_lanes text[], OUT again_queues text[],
    OUT again_lanes text[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    freed integer;
    got_lanes text[];
BEGIN
    WITH free AS MATERIALIZED (
        SELECT one.queue, one.lane, count(*) AS number, max(ARRAY[one.priority, one.joined_ms, one.seq]) AS place
        FROM unnest(its_queues, its_lanes, priorities, joineds, seqs) AS one (queue, lane, priority, joined_ms, seq)
        GROUP BY one.queue, one.lane
    ),

    -- Without a limit, no job waits for a slot that ends.
    limited AS MATERIALIZED (
        SELECT free.*, (own.pause, own.review_ms, known.lane_review, own.rate_count, known.lane_rate_count) IS NULL AS passes
        FROM free JOIN {schema}.queues AS known ON known.queue = free.queue
        LEFT JOIN {schema}.lanes AS own ON own.queue = free.queue AND own.lane = free.lane
        WHERE coalesce(own.running, known.lane_running) IS NOT NULL
    ),

    begun AS MATERIALIZED (
        SELECT
            limited.queue, limited.lane, limited.number, limited.place[2] AS joined_ms, limited.place[3] AS seq,
            CASE
                WHEN
                    from_start OR limited.place[2] IS NULL OR (
                        limited.place[1] > 0 AND EXISTS (
                            SELECT FROM (
                                SELECT FROM {schema}.jobs
                                WHERE
                                    jobs.queue = limited.queue AND jobs.lane = limited.lane AND jobs.slot = -1
                                    AND jobs.priority < limited.place[1]
                                ORDER BY jobs.priority, jobs.joined_ms, jobs.seq LIMIT 1
                            ) AS urgent
                        )
                    )
                    THEN -1
                ELSE limited.place[1]::integer
            END AS priority
        FROM limited WHERE limited.passes
    ),

    heads AS MATERIALIZED (
        SELECT head.place
        FROM begun CROSS JOIN LATERAL (
            SELECT jobs.ctid AS place FROM {schema}.jobs
            WHERE
                jobs.queue = begun.queue AND jobs.lane = begun.lane AND jobs.slot = -1
                AND (jobs.priority, jobs.joined_ms, jobs.seq) >= (begun.priority, coalesce(begun.joined_ms, 0), begun.seq)
            ORDER BY jobs.priority, jobs.joined_ms, jobs.seq LIMIT begun.number FOR UPDATE SKIP LOCKED
        ) AS head
    ),

    admitted AS (
        UPDATE {schema}.jobs SET slot = 0, held = NULL, due_ms = now_ms, updated_ms = now_ms
        FROM heads WHERE jobs.ctid = heads.place
        RETURNING jobs.queue, jobs.lane
    )

    SELECT
        count(*)::integer, array_agg(admitted.queue), array_agg(admitted.lane),
        (SELECT coalesce(sum(begun.number), 0) FROM begun),
        (SELECT array_agg(limited.queue) FROM limited WHERE NOT limited.passes),
        (SELECT array_agg(limited.lane) FROM limited WHERE NOT limited.passes),
        (SELECT array_agg(begun.queue) FROM begun), (SELECT array_agg(begun.lane) FROM begun)
    INTO given, given_queues, got_lanes, freed, look_queues, look_lanes, again_queues, again_lanes
    FROM admitted;
    IF given >= freed THEN
        again_queues := NULL;
        again_lanes := NULL;
    ELSIF given > 0 THEN
        SELECT array_agg(free.queue), array_agg(free.lane) INTO again_queues, again_lanes
        FROM (
            SELECT one.queue, one.lane, count(*) AS number
            FROM unnest(its_queues, its_lanes) AS one (queue, lane) GROUP BY one.queue, one.lane
        ) AS free
        LEFT JOIN (
            SELECT one.queue, one.lane, count(*) AS number
            FROM unnest(given_queues, got_lanes) AS one (queue, lane) GROUP BY one.queue, one.lane
        ) AS got ON got.queue = free.queue AND got.lane = free.lane
        WHERE
            free.number > coalesce(got.number, 0)
            AND (free.queue, free.lane) IN (
                SELECT one.queue, one.lane FROM unnest(again_queues, again_lanes) AS one (queue, lane)
            );
    END IF;
END $$;

-- Before a claim from these queues: jobs that have become due stand in their lanes; lanes whose rate allows more, that are
-- marked, or that a change of the rule has not reached yet are filled, and those that the caller gives. `joined_x`: lanes in
-- which the caller has made jobs ready. `next_ms`: when a lane may give a slot without a settlement.
CREATE OR REPLACE FUNCTION {schema}.look_at_lanes(
    now_ms bigint, queues text[], its_queues text[], its_lanes text[], joined_queues text[], joined_lanes text[],
    OUT given integer, OUT given_queues text[], OUT again_queues text[], OUT again_lanes text[], OUT next_ms bigint
) LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    review record;
BEGIN
    FOR review IN
        SELECT * FROM unnest(queues) AS one (queue)
        WHERE EXISTS (SELECT FROM {schema}.queues AS known WHERE known.queue = one.queue AND known.lane_review IS NOT NULL)
    LOOP
        SELECT its_queues || array_agg(review.queue), its_lanes || array_agg(one.lane) INTO its_queues, its_lanes
        FROM {schema}.review_lanes(review.queue) AS one (lane);
    END LOOP;
    WITH due AS MATERIALIZED (
        SELECT ahead.place
        FROM unnest(queues) AS one (queue) CROSS JOIN LATERAL (
            SELECT jobs.ctid AS place FROM {schema}.jobs
            WHERE jobs.queue = one.queue AND jobs.slot = -2 AND jobs.joined_ms <= now_ms
            ORDER BY jobs.joined_ms LIMIT {max_released} FOR UPDATE SKIP LOCKED
        ) AS ahead
    ),

    promoted AS (
        UPDATE {schema}.jobs SET slot = -1, updated_ms = now_ms FROM due WHERE jobs.ctid = due.place
        RETURNING jobs.queue, jobs.lane
    ),

    marked AS ({take_marks}),

    waiting AS (
        SELECT ahead.queue, ahead.lane
        FROM unnest(queues) AS one (queue) CROSS JOIN LATERAL (
            SELECT own.queue, own.lane FROM {schema}.lanes AS own
            WHERE
                own.queue = one.queue AND least(own.again_ms, own.review_ms) <= now_ms
                AND (own.again_ms IS NOT NULL OR own.review_ms IS NOT NULL)
            ORDER BY least(own.again_ms, own.review_ms) LIMIT {max_released}
        ) AS ahead
    )

    SELECT
        its_queues || array_agg(changed.queue), its_lanes || array_agg(changed.lane),
        joined_queues || array_agg(changed.queue) FILTER (WHERE changed.joins),
        joined_lanes || array_agg(changed.lane) FILTER (WHERE changed.joins)
    INTO its_queues, its_lanes, joined_queues, joined_lanes
    FROM (
        SELECT promoted.*, true FROM promoted
        UNION ALL
        SELECT marked.*, true FROM marked
        UNION ALL
        SELECT waiting.*, false FROM waiting
    ) AS changed (queue, lane, joins);
    IF cardinality(its_lanes) > 0 THEN
        SELECT filled.* INTO given, given_queues, again_queues, again_lanes
        FROM {schema}.fill_lanes(now_ms, its_queues, its_lanes) AS filled;
    END IF;
    IF cardinality(joined_lanes) > 0 THEN
        SELECT again_queues || array_agg(one.queue), again_lanes || array_agg(one.lane) INTO again_queues, again_lanes
        FROM (SELECT DISTINCT * FROM unnest(joined_queues, joined_lanes) AS each (queue, lane)) AS one
        WHERE {has_ready};
    END IF;
    SELECT
        least(
            min((
                SELECT jobs.joined_ms FROM {schema}.jobs WHERE jobs.queue = one.queue AND jobs.slot = -2
                ORDER BY jobs.joined_ms LIMIT 1
            )),
            min((
                SELECT least(own.again_ms, own.review_ms) FROM {schema}.lanes AS own
                WHERE own.queue = one.queue AND (own.again_ms IS NOT NULL OR own.review_ms IS NOT NULL)
                ORDER BY least(own.again_ms, own.review_ms) LIMIT 1
            ))
        )
    INTO next_ms
    FROM unnest(queues) AS one (queue)
    JOIN {schema}.queues AS known ON known.queue = one.queue AND NOT known.paused;
END $$;

-- The lanes of an exchange that claims from these queues: hand over the slots of settled jobs (`freed_x`; `joined_x`, those of
-- jobs that wait again), and then look at the lanes that the caller has to look at again (`again_x`), and at others as
-- look_at_lanes says. Without `fills`, these lanes are marked, because the caller does more in the same transaction. Returned
-- as `again_x`: lanes that the caller must look at again after its commit.
CREATE OR REPLACE FUNCTION {schema}.exchange_lanes(
    now_ms bigint, queues text[], freed_queues text[], freed_lanes text[], freed_priorities integer[],
    freed_joineds bigint[], freed_seqs bigint[], joined_queues text[], joined_lanes text[], INOUT again_queues text[], INOUT again_lanes text[], from_start boolean,
    fills boolean, OUT given integer, OUT given_queues text[], OUT next_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    look_queues text[] := again_queues;
    look_lanes text[] := again_lanes;
    passed record;
    filled record;
BEGIN
    given := 0;
    again_queues := NULL;
    again_lanes := NULL;
    IF freed_lanes IS NOT NULL THEN
        passed := {schema}.hand_over(
            now_ms, freed_queues, freed_lanes, freed_priorities, freed_joineds, freed_seqs, from_start
        );
        given := passed.given;
        given_queues := passed.given_queues;
        again_queues := passed.again_queues;
        again_lanes := passed.again_lanes;
        look_queues := look_queues || passed.look_queues;
        look_lanes := look_lanes || passed.look_lanes;
    END IF;
    IF NOT fills THEN
        INSERT INTO {schema}.lane_marks (queue, lane)
        SELECT DISTINCT one.queue, one.lane
        FROM unnest(look_queues || again_queues, look_lanes || again_lanes) AS one (queue, lane);
        RETURN;
    END IF;
    filled := {schema}.look_at_lanes(now_ms, queues, look_queues, look_lanes, joined_queues, joined_lanes);
    given := given + coalesce(filled.given, 0);
    given_queues := given_queues || filled.given_queues;
    again_queues := again_queues || filled.again_queues;
    again_lanes := again_lanes || filled.again_lanes;
    next_ms := filled.next_ms;
END $$;

-- The next lanes that a change of the rule has not reached. The caller fills them in the same transaction. When there are none,
-- the change has reached all: not before, because until then no slot of the queue is handed over.
CREATE OR REPLACE FUNCTION {schema}.review_lanes(this_queue text) RETURNS SETOF text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    reached text;
    found_lanes text[];
BEGIN
    SELECT known.lane_review INTO reached FROM {schema}.queues AS known
    WHERE known.queue = this_queue AND known.lane_review IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    found_lanes := ARRAY({lanes_after});
    UPDATE {schema}.queues AS known SET lane_review = found_lanes[cardinality(found_lanes)] WHERE known.queue = this_queue;
    RETURN QUERY SELECT unnest(found_lanes);
END $$;
