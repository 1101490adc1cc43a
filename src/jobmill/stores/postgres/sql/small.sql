-- Short statements, and parts of statements, each after its name. Parameters and rows are described with each.

-- name: home
-- Distinguishes this schema from one of the same name in another database: when it was made, in microseconds.
-- An expression. A copy of the database has the same value.
(SELECT (extract(epoch FROM made.applied_at) * 1000000)::bigint FROM {schema}.migrations AS made WHERE made.number = 1)

-- name: extensions
-- The names of the schema's extensions: views x that have a function x_catch_up. Rows: name.
SELECT pg_class.relname
FROM pg_class
JOIN pg_proc
    ON pg_proc.pronamespace = pg_class.relnamespace AND pg_proc.proname = pg_class.relname || '_catch_up'
WHERE pg_class.relnamespace = to_regnamespace('{schema}') AND pg_class.relkind = 'v'

-- ---------------------------------------------------------------------------------------------------- read

-- name: live
-- Live jobs with the further columns of final ones, to be read as `jobs`. Part of a FROM.
(
    SELECT
        *, CASE WHEN lease_until_ms > 0 THEN 'running' ELSE 'waiting' END AS state, NULL::bigint AS finished_ms
    FROM {schema}.jobs
) AS jobs

-- name: read
-- The columns of a job to read, named as its fields, from {live} or from history AS jobs.
jobs.id, jobs.name, jobs.queue, jobs.state, jobs.priority, jobs.due_ms, jobs.created_ms, jobs.updated_ms,
nullif(jobs.started_ms, 0) AS started_ms, jobs.finished_ms, jobs.errors, jobs.crashes, jobs.claims,
nullif(jobs.worker, '') AS worker, jobs.error, jobs.unique_key, jobs.tenant, jobs.payload, {extra} AS extra

-- name: get
-- Jobs by id, in any order. $1 ids.
SELECT {read} FROM {live} WHERE jobs.id = ANY ($1::text[])
UNION ALL
SELECT {read} FROM {schema}.history AS jobs WHERE jobs.id = ANY ($1::text[])

-- name: find
-- A page of jobs in the order of their ids, from both tables; each has an index in this order. $1 limit; the other
-- parameters are those of the conditions. {order} is DESC or ASC.
SELECT * FROM (
    (SELECT {read} FROM {live} WHERE {live_where} ORDER BY jobs.id {order} LIMIT $1)
    UNION ALL
    (SELECT {read} FROM {schema}.history AS jobs WHERE {final_where} ORDER BY jobs.id {order} LIMIT $1)
) AS found ORDER BY id {order} LIMIT $1

-- name: count
-- The number of matching jobs by queue, name and state. The parameters are those of the conditions.
SELECT queue, name, state, count(*) FROM {live} WHERE {live_where} GROUP BY queue, name, state
UNION ALL
SELECT queue, name, state, count(*) FROM {schema}.history AS jobs WHERE {final_where} GROUP BY queue, name, state

-- name: oldest
-- When the first waiting job of each queue and name became due. $1 queue, $2 name (NULL: all), $3 now.
-- Rows: queue, name, due_ms.
SELECT queue, name, min(due_ms) FROM {schema}.jobs
WHERE lease_until_ms = 0 AND due_ms <= $3 AND ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR name = $2)
GROUP BY queue, name

-- name: run_counts
-- The number of runs of recurring jobs. $1 queue, $2 name (NULL: all). Rows: queue, name, state, number.
SELECT queue, name, state, count(*) FROM {schema}.runs
WHERE ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR name = $2)
GROUP BY queue, name, state

-- name: durations
-- How long succeeded jobs and runs of each queue and name took, of the last $3 that finished. $1 queue, $2 name (NULL:
-- all). Rows: queue, name, durations in ms.
SELECT queue, name, array_agg(took) FROM (
    SELECT queue, name, took, row_number() OVER (PARTITION BY queue, name ORDER BY finished_ms DESC) AS nth
    FROM (
        SELECT queue, name, state, finished_ms, finished_ms - started_ms AS took FROM {schema}.history
        UNION ALL
        SELECT queue, name, state, finished_ms, duration_ms FROM {schema}.runs
    ) AS ended
    WHERE state = 'succeeded' AND ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR name = $2)
) AS runs
WHERE nth <= $3 GROUP BY queue, name

-- name: logs
-- The last log lines of a job, newest first. $1 id, $2 limit. Rows: at_ms, text.
SELECT at_ms, text FROM {schema}.logs WHERE id = $1 ORDER BY line DESC LIMIT $2

-- ---------------------------------------------------------------------------------------------------- change

-- name: subject
-- What a change must know of a final job.
jobs.id, jobs.name, jobs.queue, jobs.state, jobs.errors, jobs.options

-- name: live_subject
-- What a change must know of a live job.
jobs.id, jobs.name, jobs.queue, CASE WHEN jobs.lease_until_ms > 0 THEN 'running' ELSE 'waiting' END, jobs.errors,
jobs.options

-- name: live_matches
-- Live jobs that match, locked in the order of ids. $1 limit; the other parameters are those of the conditions.
SELECT {live_subject} FROM {schema}.jobs WHERE {live_where} ORDER BY jobs.id LIMIT $1 FOR UPDATE

-- name: final_matches
-- Final jobs that match, locked in the order of ids. $1 limit; the other parameters are those of the conditions.
SELECT {subject} FROM {schema}.history AS jobs WHERE {final_where} ORDER BY jobs.id LIMIT $1 FOR UPDATE

-- name: change_live
-- Write columns of live jobs. $1 a JSON array with an object of columns for each job, $2 whether they were seized,
-- $3 whether they may now stand before the position of a claim cursor.
WITH changed AS (
    UPDATE {schema}.jobs SET {sets}
    FROM json_populate_recordset(NULL::{schema}.jobs, $1::json) AS patch
    WHERE jobs.id = patch.id
    RETURNING jobs.queue, jobs.id
),

noted AS (
    INSERT INTO {schema}.running (queue, id)
    SELECT changed.queue, changed.id FROM changed JOIN {schema}.queues USING (queue)
    WHERE $2 AND queues.running_limit IS NOT NULL
    ON CONFLICT DO NOTHING
)

INSERT INTO {schema}.rewinds SELECT pg_current_xact_id() FROM changed WHERE $3 LIMIT 1 ON CONFLICT DO NOTHING

-- name: make_final
-- Live jobs become final and move to the history. $1 a JSON array with an object of columns for each job.
WITH patch AS (
    SELECT * FROM json_populate_recordset(NULL::{schema}.history, $1::json)
),

gone AS (
    DELETE FROM {schema}.jobs USING patch WHERE jobs.id = patch.id RETURNING jobs.*
)

INSERT INTO {schema}.history ({columns}) SELECT {values} FROM gone JOIN patch ON patch.id = gone.id

-- name: remove
-- Delete jobs that are not running, with their log lines. $1 ids.
WITH live AS (
    DELETE FROM {schema}.jobs WHERE id = ANY ($1::text[]) RETURNING id, log_lines
),

final AS (
    DELETE FROM {schema}.history WHERE id = ANY ($1::text[]) RETURNING id, log_lines
)

DELETE FROM {schema}.logs
WHERE id IN (
    SELECT gone.id FROM (SELECT * FROM live UNION ALL SELECT * FROM final) AS gone WHERE gone.log_lines IS NOT NULL
)

-- ---------------------------------------------------------------------------------------------------- purge

-- name: purge_old
-- Final jobs past their retention; those that another transaction has locked are left for the next purge.
-- $1 now, $2 limit.
SELECT {subject} FROM {schema}.history AS jobs
WHERE jobs.expires_ms <= $1 ORDER BY jobs.expires_ms LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: keep_last
-- Queues and states in which jobs are kept as one of the last. Rows: queue, state, keep_last.
SELECT DISTINCT queue, state, keep_last FROM {schema}.history WHERE keep_last IS NOT NULL

-- name: purge_surplus
-- Final jobs that are not among the last of their queue and state. $1 queue, $2 state, $3 keep_last, $4 limit.
SELECT {subject} FROM {schema}.history AS jobs
WHERE
    jobs.queue = $1 AND jobs.state = $2 AND jobs.keep_last = $3
    AND (jobs.finished_ms, jobs.id) < (
        SELECT last.finished_ms, last.id FROM {schema}.history AS last
        WHERE last.queue = $1 AND last.state = $2
        ORDER BY last.finished_ms DESC, last.id DESC LIMIT 1 OFFSET $3 - 1
    )
LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: purge_rewinds
-- One row instead of all rewinds, where there are more than $1, or one that another server made, of which this is a
-- copy: its number is not reached yet. A claim that does not know one of the deleted rows does not know the new row.
WITH gone AS (
    DELETE FROM {schema}.rewinds
    WHERE
        EXISTS (SELECT FROM {schema}.rewinds OFFSET $1)
        OR EXISTS (SELECT FROM {schema}.rewinds WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
    RETURNING xid
)

INSERT INTO {schema}.rewinds SELECT pg_current_xact_id() FROM gone LIMIT 1 ON CONFLICT DO NOTHING

-- name: purge_runs
-- Delete notes of runs. $1 the last instant at which such a run finished.
DELETE FROM {schema}.runs WHERE finished_ms <= $1

-- ---------------------------------------------------------------------------------------------------- queues, feeds

-- name: queues
-- All queues that have settings, with all columns.
SELECT * FROM {schema}.queues ORDER BY queue

-- name: queue_locked
-- A queue's row, locked; it is made if there is none. $1 queue.
INSERT INTO {schema}.queues (queue) VALUES ($1) ON CONFLICT (queue) DO UPDATE SET queue = excluded.queue RETURNING *

-- name: configure
-- Write a queue's settings. $1 queue, $2 paused, $3 rate_count, $4 rate_per_ms, $5 running_limit, $6 feed,
-- $7 events_max_len.
UPDATE {schema}.queues SET
    paused = $2, rate_count = $3, rate_per_ms = $4, running_limit = $5, feed = $6, events_max_len = $7
WHERE queue = $1

-- name: note_running
-- Note the running jobs of a queue that gets a running limit. $1 queue.
INSERT INTO {schema}.running (queue, id)
SELECT queue, id FROM {schema}.jobs WHERE queue = $1 AND lease_until_ms > 0
ON CONFLICT DO NOTHING

-- name: add_events
-- Add events to the feeds that are on; their positions follow the order of the arrays. $1 queues, $2 events as JSON.
-- Rows: the queues whose feeds are on.
WITH given AS (
    SELECT one.queue, one.event, one.n
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS one (queue, event, n)
    JOIN {schema}.queues ON queues.queue = one.queue AND queues.feed
),

added AS (
    INSERT INTO {schema}.events (queue, event) SELECT given.queue, given.event FROM given ORDER BY given.n
)

SELECT DISTINCT given.queue FROM given

-- name: events
-- The feed of a queue after a number, without those that are beyond its length. $1 queue, $2 number, $3 limit.
-- Rows: number, event.
SELECT events.number, events.event
FROM {schema}.events
JOIN {schema}.queues ON queues.queue = events.queue AND events.number > queues.last_event - queues.events_max_len
WHERE events.queue = $1 AND events.number > $2
ORDER BY events.number LIMIT $3

-- name: sleep
-- Note that a worker sleeps, and delete sleepers that have not renewed for long.
-- $1 listener, $2 queues, $3 for how many ms, $4 after how many ms others are deleted.
WITH gone AS (
    DELETE FROM {schema}.sleepers WHERE until_ms < {schema}.now_ms() - $4::bigint AND listener <> $1
)

INSERT INTO {schema}.sleepers (listener, queues, until_ms) VALUES ($1, $2::text[], {schema}.now_ms() + $3::bigint)
ON CONFLICT (listener) DO UPDATE SET queues = excluded.queues, until_ms = excluded.until_ms

-- name: usage
-- Add usage records, all or none. $1 to $10: the fields of Usage, in their order, an array each.
-- Measured at 500 a call, CPU per record: 2.1 us of the server and 3.0 of the client. COPY takes 1.5 and 0.7, but it
-- asks for the types of the columns first, for which a worker would need the right to read everybody's usage.
INSERT INTO {schema}.usage (
    job_id, name, queue, tenant, attempt, outcome, duration_ms, started_ms, finished_ms, worker
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::double precision[], $8::bigint[],
    $9::bigint[], $10::text[]
)
