-- All queues that have jobs or settings, by name. Rows: queue.
-- Skip scans: one seek for each queue and state, however many jobs there are.
WITH RECURSIVE waiting (queue) AS (
    SELECT min(queue) FROM jobmill_jobs WHERE state = 'waiting'
    UNION ALL
    SELECT (SELECT min(jobs.queue) FROM jobmill_jobs AS jobs WHERE jobs.state = 'waiting' AND jobs.queue > waiting.queue)
    FROM waiting WHERE waiting.queue IS NOT NULL
),
running (queue) AS (
    SELECT min(queue) FROM jobmill_jobs WHERE state = 'running'
    UNION ALL
    SELECT (SELECT min(jobs.queue) FROM jobmill_jobs AS jobs WHERE jobs.state = 'running' AND jobs.queue > running.queue)
    FROM running WHERE running.queue IS NOT NULL
),
final (state, queue) AS (
    VALUES ('succeeded', ''), ('failed', ''), ('cancelled', '')
    UNION ALL
    SELECT
        final.state,
        (
            SELECT min(jobs.queue) FROM jobmill_jobs AS jobs INDEXED BY jobmill_final
            WHERE
                (jobs.state = 'succeeded' OR jobs.state = 'failed' OR jobs.state = 'cancelled')
                AND jobs.state = final.state AND jobs.queue > final.queue
        )
    FROM final WHERE final.queue IS NOT NULL
)
SELECT queue FROM waiting WHERE queue IS NOT NULL
UNION
SELECT queue FROM running WHERE queue IS NOT NULL
UNION
SELECT queue FROM final WHERE queue <> ''
UNION
SELECT queue FROM jobmill_queues
ORDER BY queue
