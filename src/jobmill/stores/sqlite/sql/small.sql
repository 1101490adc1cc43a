-- Statements of a few lines. Each begins with its name, what it does, its parameters and what it returns.

-- -------------------- enqueue

-- name: newest_ids
-- The jobs inserted last. ?1 their number. Rows: id.
SELECT id FROM jobmill_jobs ORDER BY seq DESC LIMIT ?1

-- name: newest_ms
-- When the newest job was enqueued. One row: created_ms.
SELECT created_ms FROM jobmill_jobs ORDER BY seq DESC LIMIT 1

-- name: owner
-- The live job that has a unique key. ?1 queue, ?2 name, ?3 unique key.
-- One row: seq, id, recurrence, held, lane, state, started_ms, waits_for.
SELECT seq, id, recurrence, CASE WHEN due_ms = {never} THEN held END, lane, state, started_ms, waits_for
FROM jobmill_jobs
WHERE queue = ?1 AND name = ?2 AND unique_key = ?3 AND (state = 'waiting' OR state = 'running')

-- name: key_holder
-- The job that took a unique key for a time. ?1 queue, ?2 name, ?3 unique key, ?4 now. One row: id.
SELECT id FROM jobmill_taken_keys WHERE queue = ?1 AND name = ?2 AND unique_key = ?3 AND until_ms > ?4

-- name: take_key
-- A job takes a unique key for a time. ?1 queue, ?2 name, ?3 unique key, ?4 id, ?5 the end of that time.
INSERT OR REPLACE INTO jobmill_taken_keys (queue, name, unique_key, id, until_ms) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: free_keys
-- The keys that these jobs have taken are free again. ?1 ids as JSON.
DELETE FROM jobmill_taken_keys WHERE id IN (SELECT value FROM json_each(?1))

-- name: purge_taken_keys
-- Keys whose time is over. ?1 now.
DELETE FROM jobmill_taken_keys WHERE until_ms <= ?1

-- name: insert_payload
-- Store a large payload beside its job. ?1 id, ?2 payload.
INSERT OR REPLACE INTO jobmill_payloads (seq, payload) SELECT seq, ?2 FROM jobmill_jobs WHERE id = ?1

-- name: remove_payload
-- Delete a large payload. ?1 seq.
DELETE FROM jobmill_payloads WHERE seq = ?1

-- -------------------- claim

-- name: due_jobs
-- The first due jobs of an index range, in claim order, from the index alone.
-- ?1 queue, ?2 name, ?3 priority, ?4 now, ?5 limit. One row: their due_ms as JSON, their seqs as JSON.
SELECT json_group_array(first.due_ms), json_group_array(first.seq)
FROM (
    SELECT jobs.due_ms, jobs.seq FROM jobmill_jobs AS jobs
    WHERE jobs.state = 'waiting' AND jobs.queue = ?1 AND jobs.name = ?2 AND jobs.priority = ?3 AND jobs.due_ms <= ?4
    ORDER BY jobs.due_ms, jobs.seq LIMIT ?5
) AS first

-- name: running
-- How many jobs of a queue run under a lease that ends later. ?1 queue, ?2 now (-1: all that run). One row: the number.
SELECT count(*) FROM jobmill_jobs WHERE state = 'running' AND queue = ?1 AND lease_until_ms > ?2

-- name: count_unstarted
-- Before these jobs are leased again: the loss of a lease of a claim ahead counts here, and not as the crash that the
-- claim will count. ?1 seqs as JSON.
UPDATE jobmill_jobs SET unstarted = 1, crashes = crashes - 1 WHERE seq IN (SELECT value FROM json_each(?1))

-- name: first_lease
-- The first end of a lease that is still to come. ?1 queue, ?2 names as JSON, ?3 now. One row: lease_until_ms or NULL.
SELECT (
    SELECT lease_until_ms FROM jobmill_jobs
    WHERE state = 'running' AND queue = ?1 AND lease_until_ms > ?3 AND name IN (SELECT value FROM json_each(?2))
    ORDER BY lease_until_ms LIMIT 1
)

-- -------------------- settle, extend and report

-- name: held
-- The guard: which of these leases still own their jobs.
-- ?1 now; per lease: its index, seq, token. One row: the indexes of those that do, as JSON.
SELECT json_group_array(leases.column1)
FROM (VALUES {rows of 3 from ?2}) AS leases CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = leases.column2
WHERE jobs.token = leases.column3 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1

-- name: revision
-- The revision of a job's recurrence. ?1 seq. One row: the revision.
SELECT coalesce(json_extract(recurrence, '$.revision'), 0) FROM jobmill_jobs WHERE seq = ?1

-- name: note_run
-- Note a finished run of a recurring job that waits again. ?1 queue, ?2 name, ?3 state, ?4 now, ?5 when it began.
INSERT INTO jobmill_runs (queue, name, state, finished_ms, duration_ms) VALUES (?1, ?2, ?3, ?4, ?4 - ?5)

-- name: settle_and_remove
-- Settle jobs that are not kept: delete them, under the guard. ?1 now; per lease: seq, token.
DELETE FROM jobmill_jobs
WHERE seq IN (
    SELECT jobs.seq
    FROM (VALUES {rows of 2 from ?2}) AS done CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = done.column1
    WHERE jobs.token = done.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
)

-- name: extend
-- Prolong leases, under the guard. ?1 now, ?2 the new end; per lease: seq, token.
UPDATE jobmill_jobs AS jobs SET lease_until_ms = ?2
FROM (VALUES {rows of 2 from ?3}) AS leases
WHERE
    jobs.seq = leases.column1 AND jobs.token = leases.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1

-- name: progress
-- ?1 seq, ?2 now, ?3 progress as JSON.
UPDATE jobmill_jobs SET updated_ms = ?2, progress = ?3 WHERE seq = ?1

-- name: log
-- Add log lines. Per line: seq, its number, at_ms, text, attempt, level.
INSERT INTO jobmill_logs (seq, line, at_ms, text, attempt, level) VALUES {rows of 6 from ?1}

-- name: log_last
-- ?1 seq. One row: the number of the job's last log line, 0 without any.
SELECT coalesce(max(line), 0) FROM jobmill_logs WHERE seq = ?1

-- name: log_trim
-- Delete old log lines. ?1 seq, ?2 the number of the last line to delete.
DELETE FROM jobmill_logs WHERE seq = ?1 AND line <= ?2

-- -------------------- change and purge

-- name: subject
-- What a decision about a job needs, and what identifies it. ?1 id. One row: the subject of a change.
SELECT {subject} FROM jobmill_jobs AS jobs WHERE jobs.id = ?1

-- name: subjects
-- The same for jobs that match, oldest first. The conditions' parameters, then limit.
SELECT {subject} FROM jobmill_jobs AS jobs {indexed} WHERE {conditions} ORDER BY jobs.seq LIMIT ?

-- name: rival
-- The live job that has the same unique key as another. ?1 seq of the other. One row: id.
SELECT live.id
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_jobs AS live
    ON live.queue = jobs.queue AND live.name = jobs.name AND live.unique_key = jobs.unique_key
    AND (live.state = 'waiting' OR live.state = 'running')
WHERE jobs.seq = ?1 AND live.seq <> ?1

-- name: remove
-- Delete jobs; a trigger deletes what belongs to them in other tables. ?1 seqs as JSON.
DELETE FROM jobmill_jobs WHERE seq IN (SELECT value FROM json_each(?1))

-- name: keep_last
-- The queues and states in which some jobs are kept only as one of the last. Rows: queue, state, keep_last.
SELECT DISTINCT queue, state, keep_last FROM jobmill_jobs INDEXED BY jobmill_keep_last
WHERE keep_last IS NOT NULL AND (state = 'succeeded' OR state = 'failed' OR state = 'cancelled')

-- name: purge_runs
-- Delete notes of runs, oldest first. ?1 the last instant at which such a run finished, ?2 limit.
DELETE FROM jobmill_runs
WHERE finished_ms <= ?1 AND number IN (SELECT oldest.number FROM jobmill_runs AS oldest ORDER BY oldest.number LIMIT ?2)

-- name: purge_workers
-- Forget workers. ?1 the last instant at which they announced themselves.
DELETE FROM jobmill_workers WHERE seen_ms <= ?1

-- name: purge_tallies
-- Delete the tallies of a step. ?1 step_ms, ?2 the last instant at which they start.
DELETE FROM jobmill_tallies WHERE step_ms = ?1 AND start_ms <= ?2

-- name: purge_entries
-- Delete audit entries, oldest first. ?1 the last instant at which they were written, ?2 limit.
DELETE FROM jobmill_audit
WHERE at_ms <= ?1 AND number IN (SELECT oldest.number FROM jobmill_audit AS oldest ORDER BY oldest.number LIMIT ?2)

-- name: freed
-- Of the jobs that these jobs waited for: those that no other job waits or waited for, and that are past the age until
-- which they are kept. ?1 seqs as JSON, ?2 now, ?3 limit. Rows: the subject of a change.
SELECT {subject}
FROM (
    SELECT DISTINCT edges.on_seq FROM json_each(?1) AS removed CROSS JOIN jobmill_edges AS edges
    WHERE edges.job_seq = removed.value
) AS freed CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = freed.on_seq
WHERE
    (jobs.state = 'succeeded' OR jobs.state = 'failed' OR jobs.state = 'cancelled')
    AND jobs.finished_ms + jobs.keep_age_ms <= ?2
    AND NOT EXISTS (
        SELECT 1 FROM jobmill_edges AS pins
        WHERE pins.on_seq = jobs.seq AND pins.job_seq NOT IN (SELECT value FROM json_each(?1))
    )
LIMIT ?3

-- -------------------- flows

-- name: has_edges
-- Whether any job waits for others, or has waited for them. One row: 0 or 1.
SELECT EXISTS (SELECT 1 FROM jobmill_edges)

-- name: pinned
-- The jobs that edges lead to. ?1 seqs as JSON. Rows: seq.
SELECT wanted.value FROM json_each(?1) AS wanted
WHERE EXISTS (SELECT 1 FROM jobmill_edges AS edges WHERE edges.on_seq = wanted.value)

-- name: dependencies_by_id
-- The jobs that new edges lead to. ?1 ids as JSON. Rows: id, seq, state, error, whether it is recurring.
SELECT jobs.id, jobs.seq, jobs.state, jobs.error, jobs.recurrence IS NOT NULL
FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.id = wanted.value

-- name: add_edges
-- Per edge: job_seq, number, on_seq, if_failed, state, error.
INSERT INTO jobmill_edges (job_seq, number, on_seq, if_failed, state, error) VALUES {rows of 6 from ?1}

-- name: set_edges
-- ?1 state, ?2 error; per edge: job_seq, number.
UPDATE OR FAIL jobmill_edges AS edges SET state = ?1, error = ?2
FROM (VALUES {rows of 2 from ?3}) AS ended
WHERE edges.job_seq = ended.column1 AND edges.number = ended.column2

-- name: dependents_of
-- The jobs that wait for jobs, or have waited for them, from the index alone. ?1 seqs as JSON, ?2 limit. Rows: a seq for
-- each edge.
SELECT edges.job_seq FROM json_each(?1) AS wanted CROSS JOIN jobmill_edges AS edges ON edges.on_seq = wanted.value LIMIT ?2

-- name: succeed_edges
-- Set the pending edges that lead to jobs which have succeeded. ?1 seqs as JSON. OR FAIL as in settle_success.sql.
-- Measured at 100 jobs a call: edges found and written by their keys 3.2 us, this and dependents_of 1.4.
UPDATE OR FAIL jobmill_edges SET state = 'succeeded'
WHERE on_seq IN (SELECT value FROM json_each(?1)) AND state = 'pending'

-- name: unblocked
-- The jobs that are held although no edge keeps them waiting. ?1 seqs as JSON. Rows: seq, held.
SELECT jobs.seq, jobs.held FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = wanted.value
WHERE
    jobs.state = 'waiting' AND jobs.due_ms = {never}
    AND NOT EXISTS (
        SELECT 1 FROM jobmill_edges AS edges INDEXED BY jobmill_blocking WHERE edges.job_seq = jobs.seq AND {blocks}
    )

-- name: ended_edges
-- The pending edges that lead to jobs which have ended. ?1 seqs as JSON, ?2 limit. Rows: EdgeRow.
SELECT {edge}
FROM json_each(?1) AS wanted CROSS JOIN jobmill_edges AS edges ON edges.on_seq = wanted.value
    CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = edges.on_seq
WHERE edges.state = 'pending' LIMIT ?2

-- name: outbox_edges
-- The same for the jobs in the outbox. ?1 limit. Rows: EdgeRow.
SELECT {edge}
FROM jobmill_outbox AS outbox
    CROSS JOIN jobmill_edges AS edges ON edges.on_seq = outbox.seq AND edges.job_seq >= outbox.next_seq
    CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = edges.on_seq
WHERE edges.state = 'pending' LIMIT ?1

-- name: overdue_edges
-- Pending edges of jobs whose dependency has ended or is gone, so that they should have been set. ?1 seqs of the jobs, as
-- JSON. Rows: EdgeRow; a dependency that is gone counts as cancelled.
SELECT
    edges.job_seq, edges.number, edges.if_failed, edges.on_seq, coalesce(jobs.id, edges.on_id, ''),
    coalesce(jobs.state, 'cancelled'), jobs.error
FROM json_each(?1) AS wanted CROSS JOIN jobmill_edges AS edges ON edges.job_seq = wanted.value
    LEFT JOIN jobmill_jobs AS jobs ON jobs.seq = edges.on_seq
WHERE edges.state = 'pending' AND coalesce(jobs.state, 'cancelled') NOT IN ('waiting', 'running')

-- name: search_overdue
-- Examine pending edges. ?1 and ?2 the job_seq and number after which they are, ?3 their number. Rows: job_seq, number,
-- whether the dependency has ended or is gone, and no outbox has it.
SELECT
    edges.job_seq, edges.number,
    NOT EXISTS (
        SELECT 1 FROM jobmill_jobs AS jobs
        WHERE jobs.seq = edges.on_seq AND (jobs.state = 'waiting' OR jobs.state = 'running')
    )
    AND NOT EXISTS (SELECT 1 FROM jobmill_outbox AS outbox WHERE outbox.seq = edges.on_seq)
FROM jobmill_edges AS edges INDEXED BY jobmill_blocking
WHERE {blocks} AND edges.state = 'pending' AND (edges.job_seq, edges.number) > (?1, ?2)
ORDER BY edges.job_seq, edges.number LIMIT ?3

-- name: still_waiting
-- The jobs that an edge keeps waiting. ?1 seqs as JSON. Rows: seq.
SELECT wanted.value FROM json_each(?1) AS wanted
WHERE EXISTS (
    SELECT 1 FROM jobmill_edges AS edges INDEXED BY jobmill_blocking WHERE edges.job_seq = wanted.value AND {blocks}
)

-- name: circle
-- ?1 seq. One row if the job waits for a job that waits for it, or for itself.
WITH RECURSIVE reached (seq) AS (
    SELECT edges.on_seq FROM jobmill_edges AS edges WHERE edges.job_seq = ?1 AND edges.state = 'pending'
    UNION
    SELECT edges.on_seq
    FROM reached CROSS JOIN jobmill_edges AS edges ON edges.job_seq = reached.seq WHERE edges.state = 'pending'
)
SELECT 1 FROM reached WHERE reached.seq = ?1 LIMIT 1

-- name: subjects_of
-- ?1 seqs as JSON. Rows: the subject of a change.
SELECT {subject} FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = wanted.value

-- name: bad_edges
-- The edges of a job to dependencies that have not succeeded, where this matters for the job. ?1 seq. Rows: number, id,
-- if_failed, state, error.
SELECT edges.number, coalesce(jobs.id, edges.on_id, ''), edges.if_failed, edges.state, edges.error
FROM jobmill_edges AS edges LEFT JOIN jobmill_jobs AS jobs ON jobs.seq = edges.on_seq
WHERE edges.job_seq = ?1 AND edges.state IN ('failed', 'cancelled') AND edges.if_failed <> 'run'
ORDER BY edges.number

-- name: edges_of
-- The edges of a job, and the present states of its dependencies (NULL where one is gone). ?1 seq. Rows: number, id,
-- if_failed, state, error, and of the dependency: state, error.
SELECT
    edges.number, coalesce(jobs.id, edges.on_id, ''), edges.if_failed, edges.state, edges.error, jobs.state, jobs.error
FROM jobmill_edges AS edges LEFT JOIN jobmill_jobs AS jobs ON jobs.seq = edges.on_seq
WHERE edges.job_seq = ?1 ORDER BY edges.number

-- name: set_edges_of
-- The edges that lead to requeued jobs, are not pending, and whose jobs wait. ?1 seqs as JSON. Rows: job_seq, number,
-- if_failed, state.
SELECT edges.job_seq, edges.number, edges.if_failed, edges.state
FROM json_each(?1) AS wanted CROSS JOIN jobmill_edges AS edges ON edges.on_seq = wanted.value
    CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = edges.job_seq
WHERE edges.state <> 'pending' AND jobs.state = 'waiting'

-- name: write_outbox
-- Per job that has ended: seq, next_seq.
INSERT OR REPLACE INTO jobmill_outbox (seq, next_seq) VALUES {rows of 2 from ?1}

-- name: outbox
-- The jobs in the outbox. Rows: seq.
SELECT seq FROM jobmill_outbox ORDER BY seq

-- name: leave_outbox
-- ?1 seqs as JSON.
DELETE FROM jobmill_outbox WHERE seq IN (SELECT value FROM json_each(?1))

-- name: dependencies
-- The edges of a job and the results of its dependencies. ?1 id, ?2 first number, ?3 limit. Rows: number, id, if_failed,
-- state, error, result as a blob.
SELECT
    edges.number, coalesce(others.id, edges.on_id, ''), edges.if_failed, edges.state, edges.error,
    CASE
        WHEN edges.state = 'succeeded' AND others.state = 'succeeded' THEN CAST(coalesce(others.result, 'null') AS BLOB)
    END
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_edges AS edges ON edges.job_seq = jobs.seq
    LEFT JOIN jobmill_jobs AS others ON others.seq = edges.on_seq
WHERE jobs.id = ?1 AND edges.number >= ?2 ORDER BY edges.number LIMIT ?3

-- name: dependents
-- The jobs that wait for a job, or have waited for it. ?1 id, ?2 limit. Rows: id, if_failed, state.
SELECT others.id, edges.if_failed, edges.state
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_edges AS edges ON edges.on_seq = jobs.seq
    CROSS JOIN jobmill_jobs AS others ON others.seq = edges.job_seq
WHERE jobs.id = ?1 LIMIT ?2

-- name: flow_count
-- How many jobs of a flow are in each state. ?1 flow, ?2 how many jobs are counted. Rows: state, count.
SELECT state, count(*) FROM (
    SELECT jobs.state FROM jobmill_jobs AS jobs INDEXED BY jobmill_flow WHERE jobs.flow = ?1 LIMIT ?2
) GROUP BY state

-- name: edges_between
-- Which of these jobs wait for others of them. ?1 ids as JSON. Rows: id, id of the dependency.
SELECT jobs.id, others.id
FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.id = wanted.value
    CROSS JOIN jobmill_edges AS edges ON edges.job_seq = jobs.seq
    CROSS JOIN jobmill_jobs AS others ON others.seq = edges.on_seq
WHERE others.id IN (SELECT value FROM json_each(?1))

-- -------------------- lanes

-- name: has_lanes
-- Whether a live job has a lane. One row: 0 or 1.
SELECT EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_in_lane WHERE {in_lane})

-- name: lane_rows
-- ?1 queue, ?2 lanes as JSON. Rows: lane, settings as JSON, window_ends_ms, window_used, again_ms.
SELECT lanes.lane, lanes.settings, lanes.window_ends_ms, lanes.window_used, lanes.again_ms
FROM json_each(?2) AS wanted CROSS JOIN jobmill_lanes AS lanes ON lanes.queue = ?1 AND lanes.lane = wanted.value

-- name: write_lane
-- ?1 queue, ?2 lane, ?3 settings as JSON, ?4 window_ends_ms, ?5 window_used, ?6 again_ms.
INSERT OR REPLACE INTO jobmill_lanes (queue, lane, settings, window_ends_ms, window_used, again_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: purge_lanes
-- Forget lanes without settings whose window is over and that need no look. ?1 now.
DELETE FROM jobmill_lanes WHERE settings = '{}' AND window_ends_ms <= ?1 AND again_ms IS NULL

-- name: lane_slots
-- The slots of a lane. ?1 queue, ?2 lane. One row: how many jobs are admitted, how many run.
SELECT
    (
        SELECT count(*) FROM jobmill_jobs INDEXED BY jobmill_in_lane
        WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = 0 AND state = 'waiting'
    ),
    (
        SELECT count(*) FROM jobmill_jobs INDEXED BY jobmill_in_lane
        WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = 0 AND state = 'running'
    )

-- name: lane_ready
-- The first ready jobs of a lane. ?1 queue, ?2 lane, ?3 limit. Rows: priority, joined_ms, seq.
SELECT priority, joined_ms, seq FROM jobmill_jobs INDEXED BY jobmill_in_lane
WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = -1 AND state = 'waiting'
ORDER BY priority, joined_ms, seq LIMIT ?3

-- name: lane_admitted
-- The last admitted jobs of a lane, the last one first. ?1 queue, ?2 lane, ?3 limit. Rows: priority, joined_ms, seq.
SELECT priority, coalesce(joined_ms, due_ms), seq FROM jobmill_jobs INDEXED BY jobmill_in_lane
WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = 0 AND state = 'waiting'
ORDER BY priority DESC, joined_ms DESC, seq DESC LIMIT ?3

-- name: lane_counts
-- The live jobs of a lane. ?1 queue, ?2 lane, ?3 limit of each count. One row: running, admitted, ready, later.
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_in_lane
            WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = 0 AND state = 'running' LIMIT ?3
        )
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_in_lane
            WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = 0 AND state = 'waiting' LIMIT ?3
        )
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_in_lane
            WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = -1 AND state = 'waiting' LIMIT ?3
        )
    ),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_in_lane
            WHERE {in_lane} AND queue = ?1 AND lane = ?2 AND slot = -2 AND state = 'waiting' LIMIT ?3
        )
    )

-- name: admit
-- Give jobs a slot. ?1 seqs as JSON, ?2 now. OR FAIL as in settle_success.sql.
UPDATE OR FAIL jobmill_jobs SET slot = 0, held = NULL, due_ms = ?2, updated_ms = ?2
WHERE seq IN (SELECT value FROM json_each(?1))

-- name: hand_over
-- Give one free slot of each of these lanes to its next job. ?1 queue, ?2 JSON: [lane, limit], ?3 now.
UPDATE OR FAIL jobmill_jobs SET slot = 0, held = NULL, due_ms = ?3, updated_ms = ?3
WHERE seq IN (
    SELECT (
        SELECT jobs.seq FROM jobmill_jobs AS jobs INDEXED BY jobmill_in_lane
        WHERE
            jobs.lane IS NOT NULL AND (jobs.state = 'waiting' OR jobs.state = 'running') AND jobs.queue = ?1
            AND jobs.lane = json_extract(freed.value, '$[0]') AND jobs.slot = -1 AND jobs.state = 'waiting'
        ORDER BY jobs.priority, jobs.joined_ms, jobs.seq LIMIT 1
    )
    FROM json_each(?2) AS freed
    WHERE (
        SELECT count(*) FROM jobmill_jobs AS slots INDEXED BY jobmill_in_lane
        WHERE
            slots.lane IS NOT NULL AND (slots.state = 'waiting' OR slots.state = 'running') AND slots.queue = ?1
            AND slots.lane = json_extract(freed.value, '$[0]') AND slots.slot = 0
    ) < json_extract(freed.value, '$[1]')
)

-- name: displacing
-- The lanes with a ready job that is more urgent than an admitted one. ?1 queue, ?2 lanes as JSON. Rows: lane.
SELECT wanted.value FROM json_each(?2) AS wanted
WHERE
    (
        SELECT min(jobs.priority) FROM jobmill_jobs AS jobs INDEXED BY jobmill_in_lane
        WHERE
            jobs.lane IS NOT NULL AND (jobs.state = 'waiting' OR jobs.state = 'running') AND jobs.queue = ?1
            AND jobs.lane = wanted.value AND jobs.slot = -1 AND jobs.state = 'waiting'
    ) < (
        SELECT max(jobs.priority) FROM jobmill_jobs AS jobs INDEXED BY jobmill_in_lane
        WHERE
            jobs.lane IS NOT NULL AND (jobs.state = 'waiting' OR jobs.state = 'running') AND jobs.queue = ?1
            AND jobs.lane = wanted.value AND jobs.slot = 0 AND jobs.state = 'waiting'
    )

-- name: lane_times
-- When lanes of a queue may give slots without a settlement. ?1 queue. One row: when the first job that is due later may
-- run, and when the first rate allows more; or NULL.
SELECT
    (SELECT min(joined_ms) FROM jobmill_jobs INDEXED BY jobmill_lane_later
        WHERE slot = -2 AND state = 'waiting' AND queue = ?1),
    (SELECT min(again_ms) FROM jobmill_lanes WHERE queue = ?1 AND again_ms IS NOT NULL)

-- name: lane_due
-- Jobs held by their lanes that may run now. ?1 queue, ?2 now, ?3 limit. Rows: seq, lane.
SELECT seq, lane FROM jobmill_jobs INDEXED BY jobmill_lane_later
WHERE slot = -2 AND state = 'waiting' AND queue = ?1 AND joined_ms <= ?2 ORDER BY joined_ms LIMIT ?3

-- name: make_ready
-- ?1 seqs as JSON.
UPDATE OR FAIL jobmill_jobs SET slot = -1 WHERE seq IN (SELECT value FROM json_each(?1))

-- name: lanes_again
-- The lanes whose rate allows more. ?1 queue, ?2 now, ?3 limit. Rows: lane.
SELECT lane FROM jobmill_lanes WHERE queue = ?1 AND again_ms IS NOT NULL AND again_ms <= ?2 LIMIT ?3

-- name: lanes_of
-- The lanes of these jobs. ?1 seqs as JSON. Rows: queue, lane.
SELECT DISTINCT jobs.queue, jobs.lane
FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = wanted.value WHERE jobs.lane IS NOT NULL

-- name: lane_names
-- The lanes of a queue with live jobs, by name. ?1 queue, ?2 after this one, ?3 limit. Rows: lane.
-- A skip scan: one seek for each lane, however many jobs it has.
WITH RECURSIVE found (lane, number) AS (
    SELECT (SELECT min(lane) FROM jobmill_jobs INDEXED BY jobmill_in_lane WHERE {in_lane} AND queue = ?1 AND lane > ?2), 1
    UNION ALL
    SELECT
        (
            SELECT min(jobs.lane) FROM jobmill_jobs AS jobs INDEXED BY jobmill_in_lane
            WHERE
                jobs.lane IS NOT NULL AND (jobs.state = 'waiting' OR jobs.state = 'running') AND jobs.queue = ?1
                AND jobs.lane > found.lane
        ),
        found.number + 1
    FROM found WHERE found.lane IS NOT NULL AND found.number < ?3
)
SELECT lane FROM found WHERE lane IS NOT NULL

-- name: lane_pairs
-- The lanes of all queues with live jobs, by queue and name. ?1 and ?2 the queue and lane after which they are, ?3 limit.
-- Rows: queue, lane. A skip scan, as in lane_names.
WITH RECURSIVE found (queue, lane, number) AS (
    SELECT ?1, ?2, 0
    UNION ALL
    SELECT jobs.queue, jobs.lane, found.number + 1
    FROM found CROSS JOIN jobmill_jobs AS jobs
    WHERE
        found.number < ?3
        AND jobs.seq = coalesce(
            (
                SELECT next.seq FROM jobmill_jobs AS next INDEXED BY jobmill_in_lane
                WHERE
                    next.lane IS NOT NULL AND (next.state = 'waiting' OR next.state = 'running')
                    AND next.queue = found.queue AND next.lane > found.lane
                ORDER BY next.lane LIMIT 1
            ),
            (
                SELECT next.seq FROM jobmill_jobs AS next INDEXED BY jobmill_in_lane
                WHERE
                    next.lane IS NOT NULL AND (next.state = 'waiting' OR next.state = 'running')
                    AND next.queue > found.queue
                ORDER BY next.queue, next.lane LIMIT 1
            )
        )
)
SELECT queue, lane FROM found WHERE number > 0

-- name: known_lanes
-- The lanes of a queue with settings, by name. ?1 queue, ?2 after this one, ?3 limit. Rows: lane.
-- Others have only the window of a rate. Such a lane may have live jobs, too: then lane_names has it.
SELECT lane FROM jobmill_lanes WHERE queue = ?1 AND lane > ?2 AND settings <> '{}' ORDER BY lane LIMIT ?3

-- -------------------- steps and signals

-- name: add_step
-- ?1 seq, ?2 number, ?3 name, ?4 error, ?5 result as JSON.
INSERT OR IGNORE INTO jobmill_steps (seq, number, name, error, result) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: steps
-- ?1 id. Rows: number, name, result, error.
SELECT steps.number, steps.name, steps.result, steps.error
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_steps AS steps ON steps.seq = jobs.seq
WHERE jobs.id = ?1 ORDER BY steps.number

-- name: add_signal
-- ?1 seq, ?2 name, ?3 value as JSON.
INSERT OR IGNORE INTO jobmill_signals (seq, name, value) VALUES (?1, ?2, ?3)

-- name: signals
-- ?1 id. Rows: name, value.
SELECT signals.name, signals.value
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_signals AS signals ON signals.seq = jobs.seq WHERE jobs.id = ?1

-- name: has_signal
-- ?1 seq, ?2 name. One row if the job has got the signal.
SELECT 1 FROM jobmill_signals WHERE seq = ?1 AND name = ?2

-- name: waits_for
-- ?1 seq. One row: the signal that a job waits for, or NULL.
SELECT CASE WHEN state = 'waiting' THEN waits_for END FROM jobmill_jobs WHERE seq = ?1

-- name: clear_steps
-- ?1 seq.
DELETE FROM jobmill_steps WHERE seq = ?1

-- name: clear_signals
-- ?1 seq.
DELETE FROM jobmill_signals WHERE seq = ?1

-- -------------------- read

-- name: seqs_of
-- ?1 ids as JSON. Rows: id, seq.
SELECT jobs.id, jobs.seq FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.id = wanted.value

-- name: lease_ends
-- ?1 ids as JSON. Rows: id, lease_until_ms of a running job.
SELECT jobs.id, jobs.lease_until_ms FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.id = wanted.value
WHERE jobs.state = 'running'

-- name: read_one
-- A job that cannot be read together with others. ?1 seq. One row: id, queue, name, lane, the job's JSON as a blob.
SELECT jobs.id, jobs.queue, jobs.name, jobs.lane, CAST({job} AS BLOB) FROM jobmill_jobs AS jobs WHERE jobs.seq = ?1

-- name: find
-- Jobs in an index range that may match, by columns of which seq is the last. The parameters of the rest, of the
-- conditions and of the range, limit. Rows: the columns, and whether the job matches the rest.
SELECT {columns}, {rest} FROM jobmill_jobs AS jobs WHERE {conditions}{range} ORDER BY {order} LIMIT ?

-- name: waiting_ranges
-- The names and priorities of the waiting jobs of a queue, and the first due time of each. ?1 queue, ?2 limit + 1.
-- Rows: name, priority, due_ms; the first row has no name. A skip scan, as in ranges.sql.
WITH RECURSIVE ranges (name, priority, due_ms) AS (
    SELECT NULL, -1, 0
    UNION ALL
    SELECT jobs.name, jobs.priority, jobs.due_ms
    FROM ranges CROSS JOIN jobmill_jobs AS jobs
    WHERE
        jobs.seq = coalesce(
            (
                SELECT next.seq FROM jobmill_jobs AS next
                WHERE
                    next.state = 'waiting' AND next.queue = ?1 AND next.name = ranges.name
                    AND next.priority > ranges.priority
                ORDER BY next.priority, next.due_ms LIMIT 1
            ),
            (
                SELECT next.seq FROM jobmill_jobs AS next
                WHERE next.state = 'waiting' AND next.queue = ?1 AND next.name > coalesce(ranges.name, '')
                ORDER BY next.name, next.priority, next.due_ms LIMIT 1
            )
        )
    LIMIT ?2
)
SELECT name, priority, due_ms FROM ranges

-- name: final_ranges
-- The names of the final jobs of a queue and state, and how long they are kept. ?1 queue, ?2 state. Rows: name,
-- keep_age_ms; the first row has no name. A skip scan, as in purge_old.sql.
WITH RECURSIVE ranges (name, age_ms) AS (
    SELECT NULL, NULL
    UNION ALL
    SELECT jobs.name, jobs.keep_age_ms
    FROM ranges CROSS JOIN jobmill_jobs AS jobs
    WHERE
        jobs.seq = coalesce(
            (
                SELECT next.seq FROM jobmill_jobs AS next INDEXED BY jobmill_final
                WHERE
                    (next.state = 'succeeded' OR next.state = 'failed' OR next.state = 'cancelled')
                    AND next.state = ?2 AND next.queue = ?1 AND next.name = ranges.name
                    AND next.keep_age_ms > coalesce(ranges.age_ms, -1)
                ORDER BY next.keep_age_ms LIMIT 1
            ),
            (
                SELECT next.seq FROM jobmill_jobs AS next INDEXED BY jobmill_final
                WHERE
                    (next.state = 'succeeded' OR next.state = 'failed' OR next.state = 'cancelled')
                    AND next.state = ?2 AND next.queue = ?1 AND next.name > coalesce(ranges.name, '')
                ORDER BY next.name, next.keep_age_ms LIMIT 1
            )
        )
)
SELECT name, age_ms FROM ranges

-- name: oldest_searched
-- The newest job that is too old for a filter by payload. ?1 the number of newer ones. One row: seq.
SELECT seq FROM jobmill_jobs ORDER BY seq DESC LIMIT 1 OFFSET ?1

-- name: count
-- The conditions' parameters. Rows: queue, name, number of jobs.
SELECT jobs.queue, jobs.name, count(*) FROM jobmill_jobs AS jobs {indexed} WHERE {conditions} GROUP BY jobs.queue, jobs.name

-- name: count_up_to
-- The parameters of the rest, of the conditions and of the range, limit. One row: how many jobs match, how many were read.
SELECT coalesce(sum(matches), 0), count(*)
FROM (SELECT {rest} AS matches FROM jobmill_jobs AS jobs WHERE {conditions} LIMIT ?)

-- name: depth
-- How many jobs of a queue do not wait; each count stops at the limit. ?1 queue, ?2 limit. One row: running, succeeded,
-- failed, cancelled.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM jobmill_jobs WHERE state = 'running' AND queue = ?1 LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM jobmill_jobs WHERE state = 'succeeded' AND queue = ?1 LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM jobmill_jobs WHERE state = 'failed' AND queue = ?1 LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM jobmill_jobs WHERE state = 'cancelled' AND queue = ?1 LIMIT ?2))

-- name: depth_waiting
-- How many jobs of a queue wait in parts of its index ranges; the count stops at the limit.
-- ?1 queue, ?2 JSON: [name, priority, first due_ms, last due_ms], ?3 limit. One row: the number.
SELECT count(*)
FROM (
    SELECT 1 FROM json_each(?2) AS parts CROSS JOIN jobmill_jobs AS jobs
    WHERE
        jobs.state = 'waiting' AND jobs.queue = ?1 AND jobs.name = json_extract(parts.value, '$[0]')
        AND jobs.priority = json_extract(parts.value, '$[1]')
        AND jobs.due_ms BETWEEN json_extract(parts.value, '$[2]') AND json_extract(parts.value, '$[3]')
    LIMIT ?3
)

-- name: run_counts
-- The number of runs of recurring jobs. ?1 queue, ?2 name (NULL: all). Rows: queue, name, state, number.
SELECT queue, name, state, count(*) FROM jobmill_runs
WHERE queue = coalesce(?1, queue) AND name = coalesce(?2, name) GROUP BY queue, name, state

-- name: durations
-- How long the last succeeded jobs of a name ran, those with the longest retention first, as the index orders them, and
-- its last runs. ?1 queue, ?2 name, ?3 limit of each. One row: milliseconds, as JSON.
SELECT json_group_array(last.duration_ms)
FROM (
    SELECT * FROM (
        SELECT jobs.finished_ms - jobs.started_ms AS duration_ms FROM jobmill_jobs AS jobs
        WHERE jobs.state = 'succeeded' AND jobs.queue = ?1 AND jobs.name = ?2
        ORDER BY jobs.keep_age_ms DESC, jobs.finished_ms DESC LIMIT ?3
    )
    UNION ALL
    SELECT * FROM (
        SELECT runs.duration_ms FROM jobmill_runs AS runs
        WHERE runs.state = 'succeeded' AND runs.queue = ?1 AND runs.name = ?2
        ORDER BY runs.finished_ms DESC LIMIT ?3
    )
) AS last
WHERE last.duration_ms IS NOT NULL

-- name: logs
-- The last log lines of a job, newest first. ?1 id, ?2 limit. Rows: at_ms, text.
SELECT logs.at_ms, logs.text, logs.attempt, coalesce(logs.level, 'info')
FROM jobmill_jobs AS jobs CROSS JOIN jobmill_logs AS logs ON logs.seq = jobs.seq
WHERE jobs.id = ?1 ORDER BY logs.line DESC LIMIT ?2

-- -------------------- queues, feeds and usage

-- name: queues
-- All queues that have settings. Rows: queue and the other columns, in the order of the table; the pause as JSON.
SELECT
    queues.queue, queues.paused, queues.rate_count, queues.rate_per_ms, queues.running_limit, queues.feed,
    queues.events_max_len, queues.window_ends_ms, queues.window_used, queues.last_event, pauses.pause, rules.rule,
    rules.after_lane
FROM jobmill_queues AS queues
    LEFT JOIN jobmill_pauses AS pauses ON pauses.queue = queues.queue
    LEFT JOIN jobmill_lane_rules AS rules ON rules.queue = queues.queue
ORDER BY queues.queue

-- name: write_queue
-- ?1 queue, then the other columns in their order.
INSERT OR REPLACE INTO jobmill_queues (
    queue, paused, rate_count, rate_per_ms, running_limit, feed, events_max_len, window_ends_ms, window_used, last_event
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)

-- name: write_lane_rule
-- ?1 queue, ?2 the rule of its lanes as JSON, or NULL, ?3 the lane after which it is not applied yet, or NULL.
INSERT OR REPLACE INTO jobmill_lane_rules (queue, rule, after_lane) VALUES (?1, ?2, ?3)

-- name: write_pause
-- ?1 queue, ?2 who paused it and until when, as JSON (NULL: it is not paused, or nothing is known).
INSERT OR REPLACE INTO jobmill_pauses (queue, pause) VALUES (?1, ?2)

-- name: add_events
-- Per event: queue, number, the event as JSON.
INSERT INTO jobmill_events (queue, number, event) VALUES {rows of 3 from ?1}

-- name: trim_events
-- Delete old events. ?1 queue, ?2 the number of the last event to delete.
DELETE FROM jobmill_events WHERE queue = ?1 AND number <= ?2

-- name: events
-- The feed after an event. ?1 queue, ?2 the number of that event, ?3 limit. Rows: the event as JSON.
SELECT event FROM jobmill_events WHERE queue = ?1 AND number > ?2 ORDER BY number LIMIT ?3

-- name: usage
-- Add usage records. Per record: the fields of Usage, in their order.
-- Measured at 500 a transaction, CPU per record with the file in memory: this 1.0 us; executemany 1.3; json_each 3.2.
INSERT INTO jobmill_usage (
    job_id, name, queue, tenant, attempt, outcome, duration_ms, started_ms, finished_ms, worker
) VALUES {rows of 10 from ?1}

-- -------------------- workers, tallies and the audit log

-- name: worker
-- What is known of a worker that announces itself. ?1 id. One row: announcement, must_stop.
SELECT announcement, must_stop FROM jobmill_workers WHERE id = ?1

-- name: write_worker
-- ?1 id, ?2 now, ?3 announcement, ?4 card as JSON (NULL: it has left).
INSERT INTO jobmill_workers (id, seen_ms, announcement, card) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET seen_ms = ?2, announcement = ?3, card = ?4

-- name: workers
-- ?1 an announcement is valid if it is later. Rows: the card as JSON.
SELECT card FROM jobmill_workers WHERE card IS NOT NULL AND seen_ms > ?1

-- name: order_stop
-- ?1 id, ?2 an announcement is valid if it is later.
UPDATE jobmill_workers SET must_stop = 1 WHERE id = ?1 AND card IS NOT NULL AND seen_ms > ?2

-- name: tally
-- ?1 step_ms, ?2 start_ms, ?3 queue, ?4 name. One row: the tally as JSON.
SELECT tally FROM jobmill_tallies WHERE step_ms = ?1 AND start_ms = ?2 AND queue = ?3 AND name = ?4

-- name: write_tallies
-- Per tally: step_ms, start_ms, queue, name, the tally as JSON.
INSERT OR REPLACE INTO jobmill_tallies (step_ms, start_ms, queue, name, tally) VALUES {rows of 5 from ?1}

-- name: tallies
-- ?1 step_ms, ?2 and ?3 start_ms from and until, ?4 queue, ?5 name (NULL: all). Rows: the tally as JSON.
SELECT tally FROM jobmill_tallies
WHERE
    step_ms = ?1 AND start_ms >= ?2 AND start_ms < ?3 AND queue = coalesce(?4, queue) AND name = coalesce(?5, name)

-- name: add_entries
-- Per entry: id, now, the entry as JSON.
INSERT OR IGNORE INTO jobmill_audit (id, at_ms, entry) VALUES {rows of 3 from ?1}

-- name: entries
-- Audit entries, newest first. ?1 the number before which they are, ?2 they are kept if they are later. Rows: number,
-- the entry as JSON.
SELECT number, entry FROM jobmill_audit WHERE number < ?1 AND at_ms > ?2 ORDER BY number DESC

-- name: flows
-- The ids of flows in descending order. ?1 before this id, or NULL; ?2 how many.
-- A skip scan: one seek for each flow, however many jobs it has. Every text is before every blob.
WITH RECURSIVE found (flow, number) AS (
    SELECT max(jobs.flow), 1 FROM jobmill_jobs AS jobs
    WHERE jobs.flow IS NOT NULL AND jobs.flow < coalesce(?1, x'')
    UNION ALL
    SELECT (SELECT max(jobs.flow) FROM jobmill_jobs AS jobs WHERE jobs.flow IS NOT NULL AND jobs.flow < found.flow),
        found.number + 1
    FROM found WHERE found.flow IS NOT NULL AND found.number < ?2
)
SELECT flow FROM found WHERE flow IS NOT NULL
