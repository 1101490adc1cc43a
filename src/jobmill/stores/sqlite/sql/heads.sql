-- For one queue: the first due time of each name and priority that waits, and the leases that have ended.
-- ?1 queue, ?2 names as JSON, ?3 now, ?4 most. One row, JSON: [priority, due_ms, name], [priority, due_ms, seq, name].
-- A skip scan: two seeks per name and priority, however many jobs wait, are delayed or have names not asked for.
-- Measured: 9 us for one name; settle + claim with a million waiting costs 1.05 times what it costs with 2,000.
WITH RECURSIVE line (name, priority) AS (
    SELECT
        wanted.value,
        (
            SELECT min(jobs.priority) FROM jobmill_jobs AS jobs
            WHERE jobs.state = 'waiting' AND jobs.queue = ?1 AND jobs.name = wanted.value
        )
    FROM json_each(?2) AS wanted
    UNION ALL
    SELECT
        line.name,
        (
            SELECT min(jobs.priority) FROM jobmill_jobs AS jobs
            WHERE jobs.state = 'waiting' AND jobs.queue = ?1 AND jobs.name = line.name AND jobs.priority > line.priority
        )
    FROM line WHERE line.priority IS NOT NULL
)
SELECT
    (
        SELECT json_group_array(json_array(
            line.priority,
            (
                SELECT min(jobs.due_ms) FROM jobmill_jobs AS jobs
                WHERE
                    jobs.state = 'waiting' AND jobs.queue = ?1 AND jobs.name = line.name
                    AND jobs.priority = line.priority
            ),
            line.name
        ))
        FROM line WHERE line.priority IS NOT NULL
    ),
    (
        SELECT json_group_array(json_array(ended.priority, ended.due_ms, ended.seq, ended.name))
        FROM (
            SELECT jobs.priority, jobs.due_ms, jobs.seq, jobs.name FROM jobmill_jobs AS jobs
            WHERE
                jobs.state = 'running' AND jobs.queue = ?1 AND jobs.lease_until_ms <= ?3
                AND jobs.name IN (SELECT value FROM json_each(?2))
            ORDER BY jobs.priority, jobs.due_ms, jobs.seq LIMIT ?4
        ) AS ended
    )
