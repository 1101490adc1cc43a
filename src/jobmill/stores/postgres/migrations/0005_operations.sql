-- Attempts, held jobs, pauses with a reason, pinned recurrences; announced workers, what they counted, and the audit log.

-- Attempts that did not succeed, as JSON. Jobs of older versions have texts in `tracebacks`, which is not written any
-- more; a worker of such a version that is still connected sends texts, which are stored here.
-- What holds a waiting job, as JSON. A client of an older version cannot make such a job due: the trigger refuses it. (A
-- check would be read and prepared anew by each INSERT and claim: 21,000 of 435,000 instructions of a lone enqueue.)
ALTER TABLE {schema}.jobs ADD COLUMN attempts text, ADD COLUMN held text;
ALTER TABLE {schema}.history ADD COLUMN attempts text, ADD COLUMN held text;

CREATE FUNCTION {schema}.refuse_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % is held and cannot become due (jobs_held): release it with a newer version', NEW.id
    USING ERRCODE = 'check_violation', CONSTRAINT = 'jobs_held';
END $$;
CREATE TRIGGER jobs_held AFTER UPDATE OF due_ms, held ON {schema}.jobs FOR EACH ROW
WHEN (NEW.held IS NOT NULL AND NEW.due_ms <> {never_ms}) EXECUTE FUNCTION {schema}.refuse_due();

-- Who paused a queue, why and until when, as JSON.
ALTER TABLE {schema}.queues ADD COLUMN pause text;

-- Workers that announced themselves. `announcement` is the last one whose counts were added.
CREATE TABLE {schema}.workers (
    id text COLLATE "C" PRIMARY KEY,
    announcement bigint NOT NULL,
    seen_ms bigint NOT NULL,
    stop boolean NOT NULL DEFAULT false,
    card text NOT NULL
) WITH (fillfactor = 50);

-- What workers counted. No column that an announcement changes is indexed, and there is room for the second version of
-- a row on its page.
CREATE TABLE {schema}.tallies (
    step_ms bigint NOT NULL,
    start_ms bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    counts jsonb NOT NULL,
    texts jsonb NOT NULL,
    PRIMARY KEY (step_ms, start_ms, queue, name)
) WITH (fillfactor = 50);

CREATE TABLE {schema}.audit (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms bigint NOT NULL,
    id text COLLATE "C" NOT NULL UNIQUE,
    who text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    queue text COLLATE "C",
    ids text[] NOT NULL,
    entry text NOT NULL
);
CREATE INDEX audit_at ON {schema}.audit (at_ms);

-- For counts, lists and the purge of final jobs. Jobs that are kept for an equal time expire in the order in which they
-- finished. Every job is inserted here, and most of them have succeeded: counted with INSERTs of 50 rows, a row takes
-- 16,300 instructions without these indexes, 23,600 with the index on expires_ms that they replace, and 30,500 now. (An
-- index on queue, state and finished_ms beside the old one: 37,100.)
CREATE INDEX history_succeeded ON {schema}.history (queue, (coalesce(expires_ms - finished_ms, -1)), finished_ms)
    WHERE state = 'succeeded';
CREATE INDEX history_not_succeeded ON {schema}.history (
    state, queue, (coalesce(expires_ms - finished_ms, -1)), finished_ms
) WHERE state <> 'succeeded';
DROP INDEX {schema}.history_expires;

-- Recurring jobs. It replaces the index of those that are declared by handlers: they are a part of these.
CREATE INDEX jobs_recurring ON {schema}.jobs (id) WHERE recurrence IS NOT NULL;
DROP INDEX {schema}.jobs_declared;

-- The hash first: a key is also searched without its queue and name.
DROP INDEX {schema}.jobs_unique_key;
CREATE UNIQUE INDEX jobs_unique_key ON {schema}.jobs ({schema}.key_hash(unique_key), queue, name)
    WHERE unique_key IS NOT NULL;
CREATE INDEX history_unique_key ON {schema}.history ({schema}.key_hash(unique_key)) WHERE unique_key IS NOT NULL;

DROP FUNCTION IF EXISTS {schema}.settle_waiting(bigint, json);
-- install settle_waiting
-- install claim
-- install enqueue_recurring
-- install announce
-- install depths
-- install payload_has

-- A superuser may migrate: what is new belongs to the owner of the schema, who grants the roles their rights.
DO $$
DECLARE
    owner text := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = '{schema}.jobs'::regclass);
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['workers', 'tallies', 'audit'] LOOP
        EXECUTE 'ALTER TABLE {schema}.' || one || ' OWNER TO ' || owner;
    END LOOP;
    FOREACH one IN ARRAY ARRAY['announce', 'depths', 'payload_has', 'refuse_due', 'restated'] LOOP
        EXECUTE 'ALTER FUNCTION {schema}.' || one || ' OWNER TO ' || owner;
    END LOOP;
END $$;
