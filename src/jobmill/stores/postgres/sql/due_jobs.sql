-- Find and lock the jobs that a claim takes of the lines of this queue: a part of claim.sql.
SELECT ahead.place, ahead.taken_over, ahead.worker, ahead.uncounted
FROM unnest(its_names, its_priorities, its_dues, its_seqs, takes)
    AS line (name, priority, due_ms, seq, take)
CROSS JOIN LATERAL (
    SELECT
        jobs.ctid AS place, jobs.lease_until_ms > 0 AS taken_over, jobs.worker,
        -- The lost lease was the job's first one of a claim ahead: that is no crash.
        jobs.unstarted IS NULL AND starts_with(jobs.token, '{ahead}') AS uncounted
    FROM {schema}.jobs
    WHERE
        jobs.queue = this_queue AND jobs.name = line.name AND jobs.priority = line.priority
        AND jobs.due_ms <= now_ms AND (jobs.due_ms, jobs.seq) >= (line.due_ms, line.seq)
        AND jobs.lease_until_ms <= now_ms AND jobs.id <> ALL (not_these)
    ORDER BY jobs.due_ms, jobs.seq LIMIT line.take
    FOR UPDATE SKIP LOCKED
) AS ahead
