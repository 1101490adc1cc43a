-- Find and lock the jobs that a claim takes of the lines of this queue: a part of claim.sql. Returns their places, and what to
-- say of those that another worker has lost, by id (NULL: there are none).
SELECT
    array_agg(ahead.place),
    jsonb_object_agg(
        ahead.lost_id,
        '"recovered_from":' || to_json(ahead.worker)::text || ',"uncounted":' || ahead.uncounted::text || ','
    ) FILTER (WHERE ahead.lost_id IS NOT NULL)
INTO places, lost
FROM unnest(its_names, its_priorities, its_dues, its_seqs, takes)
    AS line (name, priority, due_ms, seq, take)
CROSS JOIN LATERAL (
    SELECT
        jobs.ctid AS place, CASE WHEN jobs.lease_until_ms > 0 THEN jobs.id END AS lost_id, jobs.worker,
        {is_uncounted} AS uncounted
    FROM {schema}.jobs
    WHERE
        jobs.queue = this_queue AND jobs.name = line.name AND jobs.priority = line.priority
        AND jobs.due_ms <= now_ms AND (jobs.due_ms, jobs.seq) >= (line.due_ms, line.seq)
        AND jobs.lease_until_ms <= now_ms AND jobs.id <> ALL (not_these)
    ORDER BY jobs.due_ms, jobs.seq LIMIT line.take
    FOR UPDATE SKIP LOCKED
) AS ahead
