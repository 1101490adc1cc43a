-- Final jobs that are past the age up to which they are kept.
-- ?1 now, ?2 limit. Rows: the subject of a change.
-- A skip scan: a few seeks for each state, queue, name and age, then a range of the index.
WITH RECURSIVE kept (state, queue, name, age_ms) AS (
    SELECT final.column1, '', '', NULL FROM (VALUES ('succeeded'), ('failed'), ('cancelled')) AS final
    UNION ALL
    SELECT jobs.state, jobs.queue, jobs.name, jobs.keep_age_ms
    FROM kept CROSS JOIN jobmill_jobs AS jobs
    WHERE
        jobs.seq = coalesce(
            (
                SELECT older.seq FROM jobmill_jobs AS older INDEXED BY jobmill_final
                WHERE
                    (older.state = 'succeeded' OR older.state = 'failed' OR older.state = 'cancelled')
                    AND older.state = kept.state AND older.queue = kept.queue AND older.name = kept.name
                    AND older.keep_age_ms > coalesce(kept.age_ms, -1)
                ORDER BY older.keep_age_ms LIMIT 1
            ),
            (
                SELECT next.seq FROM jobmill_jobs AS next INDEXED BY jobmill_final
                WHERE
                    (next.state = 'succeeded' OR next.state = 'failed' OR next.state = 'cancelled')
                    AND next.state = kept.state AND next.queue = kept.queue AND next.name > kept.name
                ORDER BY next.name, next.keep_age_ms LIMIT 1
            ),
            (
                SELECT next.seq FROM jobmill_jobs AS next INDEXED BY jobmill_final
                WHERE
                    (next.state = 'succeeded' OR next.state = 'failed' OR next.state = 'cancelled')
                    AND next.state = kept.state AND next.queue > kept.queue
                ORDER BY next.queue, next.name, next.keep_age_ms LIMIT 1
            )
        )
)
SELECT {subject}
FROM kept CROSS JOIN jobmill_jobs AS jobs INDEXED BY jobmill_final
WHERE
    kept.age_ms IS NOT NULL
    AND (jobs.state = 'succeeded' OR jobs.state = 'failed' OR jobs.state = 'cancelled')
    AND jobs.state = kept.state AND jobs.queue = kept.queue AND jobs.name = kept.name
    AND jobs.keep_age_ms = kept.age_ms AND jobs.finished_ms <= ?1 - kept.age_ms
    AND NOT {pinned}
LIMIT ?2
