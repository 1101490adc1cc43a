-- The first due jobs of one queue, name and priority, in claim order, from the index alone.
-- ?1 queue, ?2 name, ?3 priority, ?4 now, ?5 most. One row: their due_ms as JSON, their seqs as JSON.
SELECT json_group_array(first.due_ms), json_group_array(first.seq)
FROM (
    SELECT jobs.due_ms, jobs.seq FROM jobmill_jobs AS jobs
    WHERE jobs.state = 'waiting' AND jobs.queue = ?1 AND jobs.name = ?2 AND jobs.priority = ?3 AND jobs.due_ms <= ?4
    ORDER BY jobs.due_ms, jobs.seq LIMIT ?5
) AS first
