-- Roles of Jobmill's schema {schema}, each with the rights that it needs. Run this as the owner of the schema, or as a
-- superuser, after `jobmill migrate`, and again after every update of Jobmill: it revokes what it granted before, and
-- grants what is needed now. To use other names, replace them everywhere in this script. Then grant a role to each
-- login:
-- GRANT {producer} TO shop_web;
--
--   {producer}    may enqueue, with the client and with SQL; it cannot read other jobs
--   {reader}      may read jobs, results, logs, queues, announced workers and the audit log
--   {worker}      may run jobs: enqueue, read, claim, settle, cancel, requeue, purge, announce itself, audit; and
--                 pause and resume queues and lanes, as a handler does whose API refuses calls
--   {admin}       may do the same, and set limits of queues and lanes, and feeds of queues
--
-- No role may change the schema; only its owner may. Grant rights on a jobs table (--jobs-table) as on any table of
-- yours; its triggers need no rights of the role that inserts.

BEGIN;

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['{producer}', '{reader}', '{worker}', '{admin}'] LOOP
        IF to_regrole(role) IS NULL THEN
            EXECUTE format('CREATE ROLE %s NOLOGIN', role);
        END IF;
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC, {producer}, {reader}, {worker}, {admin};
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC, {producer}, {reader}, {worker}, {admin};
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC, {producer}, {reader}, {worker}, {admin};

-- To open the store.
GRANT USAGE ON SCHEMA {schema} TO {producer}, {reader}, {worker}, {admin};
GRANT SELECT ON {schema}.migrations TO {producer}, {reader}, {worker}, {admin};
GRANT EXECUTE ON FUNCTION {schema}.now_ms() TO {producer}, {reader}, {worker}, {admin};

-- To enqueue, by functions that check and insert with the rights of their owner; and to notify workers.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT pg_proc.oid FROM pg_proc
        WHERE
            pg_proc.pronamespace = '{schema}'::regnamespace
            AND pg_proc.proname IN (
                'enqueue', 'enqueue_jobs', 'enqueue_recurring', 'enqueue_edges', 'key_owners', 'enqueue_by_policy', 'wake',
                'note_lanes', 'fill_marked'
            )
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {producer}', one);
    END LOOP;
END $$;
GRANT SELECT ON {schema}.sleepers, {schema}.queues TO {producer};
GRANT INSERT ON {schema}.events TO {producer};

-- To read.
GRANT SELECT
ON
    {schema}.jobs, {schema}.history, {schema}.runs, {schema}.logs, {schema}.queues, {schema}.usage, {schema}.workers,
    {schema}.tallies, {schema}.audit, {schema}.edges, {schema}.outbox, {schema}.dropped, {schema}.steps,
    {schema}.signals, {schema}.lanes
TO {reader};
GRANT EXECUTE
ON FUNCTION {schema}.depths(bigint, text[], integer), {schema}.payload_has(text, text)
TO {reader};

-- To run jobs. In queues and lanes a worker counts claims and events, and writes pauses.
GRANT SELECT, INSERT, UPDATE, DELETE
ON
    {schema}.jobs, {schema}.history, {schema}.runs, {schema}.logs, {schema}.running, {schema}.events, {schema}.sleepers,
    {schema}.workers, {schema}.tallies, {schema}.edges, {schema}.outbox, {schema}.dropped, {schema}.steps,
    {schema}.signals, {schema}.taken_keys, {schema}.lane_marks
TO {worker}, {admin};
GRANT SELECT, INSERT ON {schema}.usage TO {worker}, {admin};
GRANT
SELECT, INSERT (queue), UPDATE (paused, pause, window_ends_ms, window_used, last_event, lane_review)
ON {schema}.queues
TO {worker};
GRANT
SELECT, DELETE, INSERT (queue, lane, pause, window_ends_ms, window_used, again_ms, review_ms),
UPDATE (pause, window_ends_ms, window_used, again_ms, review_ms)
ON {schema}.lanes
TO {worker};
GRANT SELECT, INSERT, DELETE ON {schema}.rewinds, {schema}.audit TO {worker}, {admin};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {worker}, {admin};

-- To configure queues, and to delete usage records.
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.queues, {schema}.lanes TO {admin};
GRANT UPDATE, DELETE ON {schema}.usage TO {admin};

COMMIT;
