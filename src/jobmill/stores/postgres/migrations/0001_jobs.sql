-- The whole schema of Jobmill 1: live jobs, the history of final jobs, and tables for features that some jobs use.

-- Only live jobs. seq is the order of enqueueing. All columns that a claim changes are next to each other and never
-- NULL: then the bytes before and after them, and the NULL bitmap, are the same in both versions of the row, and are
-- left out of the write-ahead log. fillfactor keeps room for the second version on the same page, and no changed column
-- is indexed: a claim touches no index. (Measured, claims that stay on their page: 60 % at fillfactor 60, all at 40;
-- settle + claim then cost 21 us and 710 B a job instead of 26 us and 850 B.)
CREATE TABLE {schema}.jobs (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    due_ms bigint NOT NULL,
    created_ms bigint NOT NULL,
    priority integer NOT NULL,
    errors integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    claims integer NOT NULL DEFAULT 0,
    updated_ms bigint NOT NULL,
    -- 0 while the job waits and before its first run.
    lease_until_ms bigint NOT NULL DEFAULT 0,
    started_ms bigint NOT NULL DEFAULT 0,
    token text NOT NULL DEFAULT '',
    worker text NOT NULL DEFAULT '',
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- JSON, byte for byte as enqueued: jsonb would refuse \u0000 and change numbers.
    payload text NOT NULL,
    unique_key text COLLATE "C",
    tenant text COLLATE "C",
    options text,
    log_lines integer,
    error text,
    result text,
    progress text,
    tracebacks text,
    doomed text,
    recurrence text,
    revision integer,
    slot_ms bigint,
    runs integer,
    failed_runs integer,
    last_error text,
    last_finished_ms bigint
) WITH (
    fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0
);

-- Claim order.
CREATE INDEX jobs_line ON {schema}.jobs (queue, name, priority, due_ms, seq);
CREATE UNIQUE INDEX jobs_id ON {schema}.jobs (id);

-- A key may be longer than an index entry may be.
CREATE FUNCTION {schema}.key_hash(key text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256(convert_to(key, 'UTF8'));

-- At most one live job has a unique key. Jobs without a key are not in this index.
CREATE UNIQUE INDEX jobs_unique_key ON {schema}.jobs (queue, name, {schema}.key_hash(unique_key))
    WHERE unique_key IS NOT NULL;

-- Final jobs. expires_ms is when the retention of a job that is kept by age ends.
CREATE TABLE {schema}.history (
    due_ms bigint NOT NULL,
    created_ms bigint NOT NULL,
    priority integer NOT NULL,
    errors integer NOT NULL,
    crashes integer NOT NULL,
    claims integer NOT NULL,
    updated_ms bigint NOT NULL,
    started_ms bigint NOT NULL,
    finished_ms bigint NOT NULL,
    expires_ms bigint,
    keep_last integer,
    state text COLLATE "C" NOT NULL,
    worker text NOT NULL,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    unique_key text COLLATE "C",
    tenant text COLLATE "C",
    options text,
    log_lines integer,
    error text,
    result text,
    progress text,
    tracebacks text,
    doomed text,
    recurrence text,
    revision integer,
    slot_ms bigint,
    runs integer,
    failed_runs integer,
    last_error text,
    last_finished_ms bigint
);
CREATE UNIQUE INDEX history_id ON {schema}.history (id);
CREATE INDEX history_expires ON {schema}.history (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX history_keep_last ON {schema}.history (queue, state, keep_last, finished_ms) WHERE keep_last IS NOT NULL;

CREATE TABLE {schema}.logs (
    id text COLLATE "C" NOT NULL, line integer NOT NULL, at_ms bigint NOT NULL, text text NOT NULL, PRIMARY KEY (id, line)
);

-- A queue without a row has the defaults.
CREATE TABLE {schema}.queues (
    queue text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    rate_count integer,
    rate_per_ms bigint,
    running_limit integer,
    feed boolean NOT NULL DEFAULT false,
    events_max_len integer NOT NULL DEFAULT {events_max_len},
    window_ends_ms bigint NOT NULL DEFAULT 0,
    window_used integer NOT NULL DEFAULT 0,
    last_event bigint NOT NULL DEFAULT 0
);

-- Jobs that may be running in queues with a running limit. Each is checked in `jobs` whenever they are counted: there
-- may be too many rows here, never too few.
CREATE TABLE {schema}.running (
    queue text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, PRIMARY KEY (queue, id)
);

-- Feeds. An event gets its number when it is first read. So numbers follow the order of commits, and an enqueue in a
-- long transaction neither makes a reader miss an event nor blocks other writers.
CREATE TABLE {schema}.events (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    number bigint,
    event text NOT NULL
);
CREATE INDEX events_number ON {schema}.events (queue, number);

-- Workers that sleep, and want to be notified of work. The table need not survive a crash.
CREATE UNLOGGED TABLE {schema}.sleepers (
    listener text COLLATE "C" PRIMARY KEY, queues text[] NOT NULL, until_ms bigint NOT NULL
) WITH (fillfactor = 50);

-- Usage: one row for each metered run.
CREATE TABLE {schema}.usage (
    job_id text NOT NULL,
    name text NOT NULL,
    queue text NOT NULL,
    tenant text NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    duration_ms double precision NOT NULL,
    started_ms bigint NOT NULL,
    finished_ms bigint NOT NULL,
    worker text NOT NULL
);

-- Incremented when a job is put before the position of a claim cursor: claims then begin at the start again.
CREATE SEQUENCE {schema}.rewinds;
SELECT nextval('{schema}.rewinds');

-- install now_ms
-- install new_id
-- install wake
-- install number_events
-- install enqueue_jobs
-- install enqueue_recurring
-- install check_text
-- install enqueue
-- install settle_waiting
-- install claim
-- install exchange
-- install extend
-- install report
