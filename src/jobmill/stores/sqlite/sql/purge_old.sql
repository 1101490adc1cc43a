-- Final jobs that are older than they should be kept.
-- ?1 now, ?2 most. Rows: seq, id, name, queue, state, errors, options.
-- A skip scan: a range of the index for each state, queue, name and age, of which there are few.
WITH RECURSIVE kept (state, queue, name, age_ms) AS (
    SELECT * FROM (
        SELECT jobs.state, jobs.queue, jobs.name, jobs.keep_age_ms
        FROM (VALUES ('succeeded'), ('failed'), ('cancelled')) AS final CROSS JOIN jobmill_jobs AS jobs
        WHERE
            jobs.seq = (
                SELECT first.seq FROM jobmill_jobs AS first
                WHERE
                    (first.state = 'succeeded' OR first.state = 'failed' OR first.state = 'cancelled')
                    AND first.state = final.column1
                ORDER BY first.queue, first.name, first.keep_age_ms LIMIT 1
            )
    )
    UNION ALL
    SELECT jobs.state, jobs.queue, jobs.name, jobs.keep_age_ms
    FROM kept CROSS JOIN jobmill_jobs AS jobs
    WHERE
        jobs.seq = (
            SELECT next.seq FROM jobmill_jobs AS next
            WHERE
                (next.state = 'succeeded' OR next.state = 'failed' OR next.state = 'cancelled')
                AND next.state = kept.state
                AND (next.queue, next.name, coalesce(next.keep_age_ms, -1))
                > (kept.queue, kept.name, coalesce(kept.age_ms, -1))
            ORDER BY next.queue, next.name, next.keep_age_ms LIMIT 1
        )
)
SELECT jobs.seq, jobs.id, jobs.name, jobs.queue, jobs.state, jobs.errors, jobs.options
FROM kept CROSS JOIN jobmill_jobs AS jobs
WHERE
    kept.age_ms IS NOT NULL
    AND (jobs.state = 'succeeded' OR jobs.state = 'failed' OR jobs.state = 'cancelled')
    AND jobs.state = kept.state AND jobs.queue = kept.queue AND jobs.name = kept.name
    AND jobs.keep_age_ms = kept.age_ms AND jobs.finished_ms <= ?1 - kept.age_ms
LIMIT ?2
