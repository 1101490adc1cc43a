-- How long the last succeeded jobs of a name ran; among those kept longest, which is how the index has them.
-- ?1 queue, ?2 name, ?3 most. One row: milliseconds, as JSON.
SELECT json_group_array(last.finished_ms - last.started_ms)
FROM (
    SELECT jobs.finished_ms, jobs.started_ms FROM jobmill_jobs AS jobs
    WHERE jobs.state = 'succeeded' AND jobs.queue = ?1 AND jobs.name = ?2
    ORDER BY jobs.keep_age_ms DESC, jobs.finished_ms DESC LIMIT ?3
) AS last
WHERE last.started_ms IS NOT NULL
