-- Lanes: jobs of one queue with the same key, which share limits. See core/lanes.py and sql/lanes.sql.

-- Of a job with a lane: `slot` is 0 if it has a slot, -1 if it is ready, -2 if it is due later, and NULL while anything but
-- the lane holds it. `joined_ms`: where it stands, or stood, in the order of its lane. All are NULL for other jobs.
ALTER TABLE {schema}.jobs ADD COLUMN lane text COLLATE "C", ADD COLUMN slot integer, ADD COLUMN joined_ms bigint;
ALTER TABLE {schema}.history ADD COLUMN lane text COLLATE "C";

-- None is unique: each hand-over would write the same key again, and look at all dead entries of it.
CREATE INDEX jobs_lane ON {schema}.jobs (queue, lane, slot, due_ms) WHERE lane IS NOT NULL;
CREATE INDEX jobs_ready ON {schema}.jobs (queue, lane, priority, joined_ms, seq) WHERE slot = -1;
CREATE INDEX jobs_later ON {schema}.jobs (queue, joined_ms) WHERE slot = -2;
CREATE INDEX history_lane ON {schema}.history (queue, lane, id) WHERE lane IS NOT NULL;

-- The rule for all lanes of a queue (`lane_strict` is NULL: none was given). `has_lanes`: a job with a lane was enqueued, or
-- a lane has settings; without it, an exchange does not look for lanes. `lane_review`: the rule has changed, and the lanes
-- after this name are yet to be filled.
ALTER TABLE {schema}.queues
ADD COLUMN has_lanes boolean NOT NULL DEFAULT false, ADD COLUMN lane_running integer,
ADD COLUMN lane_rate_count integer, ADD COLUMN lane_rate_per_ms bigint, ADD COLUMN lane_strict boolean,
ADD COLUMN lane_review text COLLATE "C";

-- Lanes with settings or with a window of their rate. `pause` is JSON. `again_ms`: when the rate allows more. `review_ms`: the
-- lane has more slots than its limit, or may have; until it fits, its slots are counted and not handed on.
CREATE TABLE {schema}.lanes (
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    running integer,
    rate_count integer,
    rate_per_ms bigint,
    strict boolean,
    pause text,
    window_ends_ms bigint NOT NULL DEFAULT 0,
    window_used integer NOT NULL DEFAULT 0,
    again_ms bigint,
    review_ms bigint,
    PRIMARY KEY (queue, lane)
) WITH (fillfactor = 50);
CREATE INDEX lanes_again ON {schema}.lanes (queue, least(again_ms, review_ms))
    WHERE again_ms IS NOT NULL OR review_ms IS NOT NULL;

-- Lanes that somebody must look at when the transaction has committed. Without any key: nobody waits for anybody.
CREATE TABLE {schema}.lane_marks (queue text COLLATE "C" NOT NULL, lane text COLLATE "C" NOT NULL);

-- An older client that requeues a job with a lane, or one that waited for others, would let it run at once: that is refused.
-- (The delete of a requeue is the only one that leaves a live job of the same id.)
CREATE OR REPLACE FUNCTION {schema}.refuse_requeue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM {schema}.jobs
        WHERE
            jobs.id = OLD.id
            AND ((jobs.dependencies IS NULL AND OLD.dependencies IS NOT NULL) OR jobs.lane IS DISTINCT FROM OLD.lane)
    ) THEN
        RAISE EXCEPTION 'job % waits for other jobs or has a lane (history_requeued): requeue it with a newer version',
            OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'history_requeued';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER history_requeued ON {schema}.history;
CREATE TRIGGER history_requeued AFTER DELETE ON {schema}.history FOR EACH ROW
WHEN (OLD.dependencies IS NOT NULL OR OLD.lane IS NOT NULL) EXECUTE FUNCTION {schema}.refuse_requeue();

-- Functions that have more parameters now, with defaults for clients of older versions, or return more.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT pg_proc.oid FROM pg_proc
        WHERE
            pg_proc.pronamespace = '{schema}'::regnamespace
            AND pg_proc.proname IN (
                'exchange', 'settle_final', 'settle_waiting', 'enqueue_jobs', 'enqueue_recurring', 'enqueue_by_policy'
            )
    LOOP
        EXECUTE 'DROP FUNCTION ' || one::text;
    END LOOP;
END $$;

-- install lanes
-- install lanes_exchange
-- install release
-- install reopen
-- install add_edges
-- install remove
-- install cancel_jobs
-- install enqueue_jobs
-- install enqueue_recurring
-- install enqueue_by_policy
-- install settle_final
-- install settle_waiting
-- install claim
-- install exchange

-- What changes a live job other than by a settlement or by its lane. Only the columns that are named count, so claims and
-- settlements of other jobs do not pay for it.
CREATE TRIGGER jobs_lane_moved AFTER UPDATE OF held, priority ON {schema}.jobs FOR EACH ROW
WHEN (
    NEW.lane IS NOT NULL AND NEW.slot IS NOT DISTINCT FROM OLD.slot
    AND (NEW.held, NEW.priority) IS DISTINCT FROM (OLD.held, OLD.priority) AND pg_trigger_depth() = 0
) EXECUTE FUNCTION {schema}.lane_moved();

-- A superuser may migrate: what is new belongs to the owner of the schema, who grants the roles their rights.
DO $$
DECLARE
    owner text := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = '{schema}.jobs'::regclass);
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['lanes', 'lane_marks'] LOOP
        EXECUTE 'ALTER TABLE {schema}.' || one || ' OWNER TO ' || owner;
    END LOOP;
    FOR one IN
        SELECT pg_proc.oid::regprocedure::text FROM pg_proc
        WHERE
            pg_proc.pronamespace = '{schema}'::regnamespace
            AND pg_proc.proname IN (
                'lane_moved', 'note_lanes', 'lanes_joined', 'hand_over', 'fill_lanes', 'displace', 'fill_marked',
                'look_at_lanes', 'exchange_lanes', 'review_lanes', 'exchange', 'settle_final', 'settle_waiting', 'enqueue_jobs',
                'enqueue_recurring', 'enqueue_by_policy'
            )
    LOOP
        EXECUTE 'ALTER FUNCTION ' || one || ' OWNER TO ' || owner;
    END LOOP;
END $$;
