-- Final jobs that are kept only as one of the last `keep_last` of their queue and state, and are older than those.
-- A job that others waited for is kept although `keep_last` is 0.
-- ?1 queue, ?2 state, ?3 keep_last, ?4 limit. Rows: the subject of a change.
WITH last (finished_ms, seq) AS (
    SELECT jobs.finished_ms, jobs.seq FROM jobmill_jobs AS jobs INDEXED BY jobmill_final
    WHERE
        (jobs.state = 'succeeded' OR jobs.state = 'failed' OR jobs.state = 'cancelled')
        AND jobs.state = ?2 AND jobs.queue = ?1
    ORDER BY jobs.finished_ms DESC, jobs.seq DESC LIMIT 1 OFFSET max(?3 - 1, 0)
)
SELECT {subject}
FROM last CROSS JOIN jobmill_jobs AS jobs INDEXED BY jobmill_keep_last
WHERE
    (jobs.state = 'succeeded' OR jobs.state = 'failed' OR jobs.state = 'cancelled')
    AND jobs.queue = ?1 AND jobs.state = ?2 AND jobs.keep_last = ?3
    AND (?3 = 0 OR (jobs.finished_ms, jobs.seq) < (last.finished_ms, last.seq))
    AND NOT {pinned}
LIMIT ?4
