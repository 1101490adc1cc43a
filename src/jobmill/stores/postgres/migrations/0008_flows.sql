-- Flows: jobs that wait for other jobs, and what runs record.

-- `has_dependents`: edges lead to the job, or have led to it. It is written before the first of them. `has_records`: it has
-- steps or signals. `dependencies`: how many edges it has. Each is NULL for most jobs. `waits_for` is only written for live
-- jobs. `pinned_x`: the retention of a final job that stays as long as its dependents.
ALTER TABLE {schema}.jobs
ADD COLUMN has_dependents boolean, ADD COLUMN has_records boolean, ADD COLUMN dependencies integer,
ADD COLUMN flow text COLLATE "C", ADD COLUMN waits_for text;
ALTER TABLE {schema}.history
ADD COLUMN has_dependents boolean, ADD COLUMN has_records boolean, ADD COLUMN dependencies integer,
ADD COLUMN flow text COLLATE "C", ADD COLUMN waits_for text,
ADD COLUMN pinned_expires_ms bigint, ADD COLUMN pinned_keep_last integer;
CREATE INDEX jobs_flow ON {schema}.jobs (flow, id) WHERE flow IS NOT NULL;
CREATE INDEX history_flow ON {schema}.history (flow, id) WHERE flow IS NOT NULL;

-- An edge leads from a job, the dependent, to the job `on_id`, its dependency. See core/flows.py. No index has the state,
-- and there is room for the second version of a row on its page: to set an edge touches no index. (Measured, settling 100
-- jobs of one dependent: 12.6 us a job; with an index of pending edges 16.7; without a dependent 6.5.)
CREATE TABLE {schema}.edges (
    job_id text COLLATE "C" NOT NULL,
    number integer NOT NULL,
    on_id text COLLATE "C" NOT NULL,
    if_failed text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'pending',
    error text,
    PRIMARY KEY (job_id, number)
) WITH (fillfactor = 45);
CREATE INDEX edges_on ON {schema}.edges (on_id, job_id, number);

-- Final jobs with more dependents than one transaction may release; and jobs that have left the store, and have edges.
CREATE TABLE {schema}.outbox (id text COLLATE "C" PRIMARY KEY);
CREATE TABLE {schema}.dropped (id text COLLATE "C" PRIMARY KEY);

CREATE TABLE {schema}.steps (
    id text COLLATE "C" NOT NULL, number integer NOT NULL, name text NOT NULL, result bytea NOT NULL, error text,
    PRIMARY KEY (id, number)
);
CREATE TABLE {schema}.signals (
    id text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, value bytea NOT NULL, PRIMARY KEY (id, name)
);

-- An older client that requeues a job which waited for others would let it run at once: that is refused. (The delete of a
-- requeue is the only one that leaves a live job of the same id.)
CREATE FUNCTION {schema}.refuse_requeue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = OLD.id AND jobs.dependencies IS NULL) THEN
        RAISE EXCEPTION 'job % waits for other jobs (history_requeued): requeue it with a newer version', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'history_requeued';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER history_requeued AFTER DELETE ON {schema}.history FOR EACH ROW
WHEN (OLD.dependencies IS NOT NULL) EXECUTE FUNCTION {schema}.refuse_requeue();

DROP FUNCTION IF EXISTS {schema}.settle_final(
    bigint, text[], text[], text[], integer[], integer[], text[], text[], text[], bigint[], integer[], integer[],
    integer[], text[], integer[]
);

-- install release
-- install reopen
-- install add_edges
-- install remove
-- install enqueue_jobs
-- install enqueue
-- install settle_final
DROP FUNCTION IF EXISTS {schema}.settle_waiting(bigint, json);
-- install settle_waiting
-- install claim
-- install exchange

-- A superuser may migrate: what is new belongs to the owner of the schema, who grants the roles their rights.
DO $$
DECLARE
    owner text := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = '{schema}.jobs'::regclass);
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['edges', 'outbox', 'dropped', 'steps', 'signals'] LOOP
        EXECUTE 'ALTER TABLE {schema}.' || one || ' OWNER TO ' || owner;
    END LOOP;
    FOR one IN
        SELECT pg_proc.oid::regprocedure::text FROM pg_proc
        WHERE
            pg_proc.pronamespace = '{schema}'::regnamespace
            AND pg_proc.proname IN (
                'release', 'release_jobs', 'flush_outbox', 'release_dependents', 'hold_again', 'reopen', 'pin', 'mark_dependencies',
                'add_edges', 'enqueue_edges', 'unpin', 'drop_edges', 'forget', 'remove', 'refuse_requeue',
                'enqueue_jobs', 'settle_final'
            )
    LOOP
        EXECUTE 'ALTER FUNCTION ' || one || ' OWNER TO ' || owner;
    END LOOP;
END $$;
