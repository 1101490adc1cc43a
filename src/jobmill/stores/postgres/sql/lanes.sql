-- Lanes: who gets a slot. The rules are those of core/lanes.py (moves), and a test compares both.
--
-- Two things give a slot. `hand_over` passes on the slots that a settlement ends, one for one: it needs no lock and no
-- count, because it never changes the number of slots of a lane. `fill_lanes` counts, under the locks of its lanes. Only a
-- transaction of one statement calls it, once, and waits for nothing after it: what somebody else has locked is skipped. So
-- lanes are locked in one order, and nobody waits long. Transactions of several statements leave marks, and lanes are filled
-- after their commit.
--
-- A transaction in flight that has ended a slot and found no ready job, and one in flight whose job is ready and found no slot,
-- do not see each other. So both look again after their commit: an exchange with the next one of its process, other calls at
-- once. If a process dies before it can, `flush_outbox` finds the lane.

-- enable_sort is off where the first of the ready jobs are searched: in a table without statistics, PostgreSQL would read and sort
-- all jobs of a lane by the index jobs_lane, instead of some by jobs_ready. For the same reason a search for any ready job that is
-- more urgent names the order of that index.

-- Take over what was written to a live job with a lane: somebody changed what holds it, or its priority. See lane_fields in
-- core/due.py: a job that only its lane holds is ready or due later. Somebody has to look at the lane.
CREATE OR REPLACE FUNCTION {schema}.lane_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    its_slot integer := NEW.slot;
    joined bigint := NEW.joined_ms;
    holds text := NEW.held;
BEGIN
    IF NEW.held IS NULL THEN
        its_slot := 0;
        joined := coalesce(joined, NEW.updated_ms);
    ELSIF NEW.held::jsonb -> 'by' <> '["lane"]' THEN
        its_slot := NULL;
        joined := NULL;
    ELSIF NEW.held IS DISTINCT FROM OLD.held THEN
        joined := greatest(
            NEW.updated_ms,
            coalesce(
                (NEW.held::jsonb #>> '{due,at_ms}')::bigint,
                NEW.updated_ms + (NEW.held::jsonb #>> '{due,after_ms}')::bigint
            )
        );
        its_slot := CASE WHEN joined <= NEW.updated_ms THEN -1 ELSE -2 END;
        holds := '{"by":["lane"],"due":{"at_ms":' || joined || '}}';
    END IF;
    UPDATE {schema}.jobs SET slot = its_slot, joined_ms = joined, held = holds
    WHERE jobs.id = NEW.id AND (jobs.slot, jobs.joined_ms, jobs.held) IS DISTINCT FROM (its_slot, joined, holds);
    INSERT INTO {schema}.lane_marks (queue, lane) VALUES (NEW.queue, NEW.lane);
    RETURN NULL;
END $$;

-- Note that queues have lanes, so that exchanges look for them.
CREATE OR REPLACE FUNCTION {schema}.note_lanes(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM unnest(these) AS one (queue)
        WHERE NOT EXISTS (SELECT FROM {schema}.queues WHERE queues.queue = one.queue AND queues.has_lanes)
    ) THEN
        INSERT INTO {schema}.queues (queue, has_lanes)
        SELECT DISTINCT one.queue COLLATE "C", true FROM unnest(these) AS one (queue) ORDER BY 1
        ON CONFLICT (queue) DO UPDATE SET has_lanes = true WHERE NOT queues.has_lanes;
    END IF;
END $$;

-- New jobs have joined lanes (NULL: those have none). Where the call is not a transaction of its own, but `told` or `inside` one
-- of a user, a mark is left; see enqueue_jobs. `inside`, the caller has noted the queues before: another transaction would wait
-- for this one. Returns whether the caller must look at the lanes again after its commit.
CREATE OR REPLACE FUNCTION {schema}.lanes_joined(
    now_ms bigint, told boolean, inside boolean, its_queues text[], its_lanes text[]
) RETURNS boolean LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    filled record;
BEGIN
    IF told OR inside THEN
        INSERT INTO {schema}.lane_marks (queue, lane)
        SELECT DISTINCT one.queue, one.lane FROM unnest(its_queues, its_lanes) AS one (queue, lane)
        WHERE one.lane IS NOT NULL;
    END IF;
    IF NOT inside THEN
        PERFORM {schema}.note_lanes(
            ARRAY(SELECT one.queue FROM unnest(its_queues, its_lanes) AS one (queue, lane) WHERE one.lane IS NOT NULL)
        );
        IF NOT told THEN
            filled := {schema}.fill_lanes(now_ms, its_queues, its_lanes);
            -- Each lane once: where no job is left, the search visits the entries of all that have got slots now.
            RETURN EXISTS (
                SELECT FROM (
                    SELECT DISTINCT * FROM unnest(its_queues, its_lanes) AS each (queue, lane) WHERE each.lane IS NOT NULL
                ) AS one
                WHERE {has_ready}
            );
        END IF;
    END IF;
    RETURN false;
END $$;

-- Count the slots of lanes and apply the rules: give free slots, take slots back, let urgent jobs pass. Only lanes with
-- something to do are locked, and examined again under the lock. `again_x`: lanes with a free slot and a ready job that
-- somebody else had locked, or in which urgent jobs have passed.
CREATE OR REPLACE FUNCTION {schema}.fill_lanes(
    now_ms bigint, its_queues text[], its_lanes text[], OUT given integer, OUT given_queues text[],
    OUT again_queues text[], OUT again_lanes text[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off SET lock_timeout = 0 AS $$
#variable_conflict use_column
DECLARE
    this record;
    passed integer;
    part record;
BEGIN
    given := 0;
    -- The statements below compare lanes with each other. Measured for one call with a job in each lane: 4,000 lanes at once
    -- 370 us a job, 250 at once 59. In the order of their locks, so that all calls lock in one order.
    IF cardinality(its_lanes) > {lanes_at_once} THEN
        SELECT
            array_agg(one.queue ORDER BY one.bucket, one.queue, one.lane),
            array_agg(one.lane ORDER BY one.bucket, one.queue, one.lane)
        INTO its_queues, its_lanes
        FROM (
            SELECT DISTINCT each.queue, each.lane, hashtext(each.queue || '/' || each.lane) & 511 AS bucket
            FROM unnest(its_queues, its_lanes) AS each (queue, lane) WHERE each.lane IS NOT NULL
        ) AS one;
        FOR start_at IN 1 .. coalesce(cardinality(its_lanes), 0) BY {lanes_at_once} LOOP
            part := {schema}.fill_lanes(
                now_ms, its_queues[start_at : start_at + {lanes_at_once} - 1],
                its_lanes[start_at : start_at + {lanes_at_once} - 1]
            );
            given := given + coalesce(part.given, 0);
            given_queues := given_queues || part.given_queues;
            again_queues := again_queues || part.again_queues;
            again_lanes := again_lanes || part.again_lanes;
        END LOOP;
        RETURN;
    END IF;
    -- Arrivals are at the end of their lane, and slots that were given last at the end of theirs: before them there may be
    -- many dead entries.
    SELECT array_agg(one.queue), array_agg(one.lane) INTO its_queues, its_lanes
    FROM (SELECT DISTINCT * FROM unnest(its_queues, its_lanes) AS each (queue, lane) WHERE each.lane IS NOT NULL) AS one
    LEFT JOIN {schema}.queues AS known ON known.queue = one.queue
    LEFT JOIN {schema}.lanes AS own ON own.queue = one.queue AND own.lane = one.lane
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN own.pause IS NULL THEN coalesce(own.running, known.lane_running) ELSE 0 END AS running,
            -- A time that has come must be replaced, or each exchange would say that there is something to do.
            own.review_ms IS NOT NULL OR known.lane_review IS NOT NULL OR own.again_ms <= now_ms AS is_reviewed,
            coalesce(own.strict, known.lane_strict, false) AS is_strict,
            {has_ready} AS has_ready
        OFFSET 0
    ) AS present
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, max(last.priority) FILTER (WHERE last.lease_until_ms = 0) AS worst
        FROM (
            SELECT jobs.priority, jobs.lease_until_ms FROM {schema}.jobs
            WHERE
                jobs.queue = one.queue AND jobs.lane = one.lane AND jobs.slot = 0
                AND present.has_ready AND present.running IS NOT NULL
            ORDER BY jobs.slot DESC, jobs.due_ms DESC LIMIT present.running + 1
        ) AS last
    ) AS slots
    WHERE
        present.is_reviewed
        OR (present.has_ready AND (slots.number <> present.running) IS NOT FALSE)
        OR (
            slots.worst > 0 AND NOT present.is_strict AND EXISTS (
                SELECT FROM (
                    SELECT FROM {schema}.jobs
                    WHERE
                        jobs.queue = one.queue AND jobs.lane = one.lane AND jobs.slot = -1
                        AND jobs.priority < slots.worst
                    ORDER BY jobs.priority, jobs.joined_ms, jobs.seq LIMIT 1
                ) AS urgent
            )
        );
    IF its_lanes IS NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock({lane_lock}, bucket.number)
    FROM (
        SELECT DISTINCT hashtext(one.queue || '/' || one.lane) & 511 AS number
        FROM unnest(its_queues, its_lanes) AS one (queue, lane) ORDER BY 1
    ) AS bucket;

    WITH {lane_moves}

    SELECT
        coalesce(sum(got.number), 0), array_agg(DISTINCT got.queue) FILTER (WHERE got.number > 0),
        array_agg(decided.queue) FILTER (WHERE coalesce(got.number, 0) < decided.take),
        array_agg(decided.lane) FILTER (WHERE coalesce(got.number, 0) < decided.take),
        array_agg(decided.queue) FILTER (WHERE decided.worst > 0), array_agg(decided.lane) FILTER (WHERE decided.worst > 0)
    INTO given, given_queues, again_queues, again_lanes, its_queues, its_lanes
    FROM decided LEFT JOIN got ON got.queue = decided.queue AND got.lane = decided.lane;
    IF again_lanes IS NOT NULL THEN
        SELECT array_agg(one.queue), array_agg(one.lane) INTO again_queues, again_lanes
        FROM unnest(again_queues, again_lanes) AS one (queue, lane) WHERE {has_ready};
    END IF;
    IF its_lanes IS NOT NULL THEN
        FOR this IN SELECT * FROM unnest(its_queues, its_lanes) AS one (queue, lane) LOOP
            passed := {schema}.displace(now_ms, this.queue, this.lane);
            given := given + passed;
            IF passed > 0 THEN
                given_queues := given_queues || this.queue;
                again_queues := again_queues || this.queue;
                again_lanes := again_lanes || this.lane;
            END IF;
        END LOOP;
    END IF;
END $$;

-- Ready jobs that are more urgent take the slots of admitted jobs, which have not begun; how many. Under the lock of the lane.
CREATE OR REPLACE FUNCTION {schema}.displace(now_ms bigint, this_queue text, this_lane text) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    pair record;
    number integer := 0;
BEGIN
    FOR pair IN
        SELECT urgent.id AS gets, last.id AS loses
        FROM (
            SELECT
                jobs.id, jobs.priority,
                row_number() OVER (ORDER BY jobs.priority DESC, jobs.joined_ms DESC, jobs.seq DESC) AS n
            FROM {schema}.jobs
            WHERE jobs.queue = this_queue AND jobs.lane = this_lane AND jobs.slot = 0 AND jobs.lease_until_ms = 0
            ORDER BY jobs.priority DESC, jobs.joined_ms DESC, jobs.seq DESC LIMIT {max_released}
        ) AS last
        JOIN (
            SELECT jobs.id, jobs.priority, row_number() OVER (ORDER BY jobs.priority, jobs.joined_ms, jobs.seq) AS n
            FROM {schema}.jobs WHERE jobs.queue = this_queue AND jobs.lane = this_lane AND jobs.slot = -1
            ORDER BY jobs.priority, jobs.joined_ms, jobs.seq LIMIT {max_released}
        ) AS urgent ON urgent.n = last.n AND urgent.priority < last.priority
    LOOP
        PERFORM FROM {schema}.jobs
        WHERE jobs.id = pair.loses AND jobs.slot = 0 AND jobs.lease_until_ms = 0 FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        UPDATE {schema}.jobs SET slot = 0, held = NULL, due_ms = now_ms, updated_ms = now_ms
        FROM (
            SELECT jobs.ctid AS place FROM {schema}.jobs WHERE jobs.id = pair.gets AND jobs.slot = -1
            FOR UPDATE SKIP LOCKED
        ) AS head
        WHERE jobs.ctid = head.place;
        CONTINUE WHEN NOT FOUND;
        UPDATE {schema}.jobs SET {pushed_back} WHERE jobs.id = pair.loses;
        number := number + 1;
    END LOOP;
    RETURN number;
END $$;

-- Fill these lanes, and all that are marked. Returns the queues in which jobs got slots.
CREATE OR REPLACE FUNCTION {schema}.fill_marked(at_ms bigint, its_queues text[], its_lanes text[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    filled record;
BEGIN
    WITH marked AS ({take_marks})

    SELECT its_queues || array_agg(marked.queue), its_lanes || array_agg(marked.lane) INTO its_queues, its_lanes
    FROM marked;
    SELECT * INTO filled FROM {schema}.fill_lanes(coalesce(at_ms, {schema}.now_ms()), its_queues, its_lanes);
    INSERT INTO {schema}.lane_marks (queue, lane)
    SELECT again.queue, again.lane FROM unnest(filled.again_queues, filled.again_lanes) AS again (queue, lane);
    RETURN filled.given_queues;
END $$;
