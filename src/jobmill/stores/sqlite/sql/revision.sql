-- Which recurrence a job has now.
-- ?1 seq. One row: its revision.
SELECT coalesce(json_extract(recurrence, '$.revision'), 0) FROM jobmill_jobs WHERE seq = ?1
