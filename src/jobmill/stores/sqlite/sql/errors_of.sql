-- How often a job has erred.
-- ?1 seq. One row: the number.
SELECT errors FROM jobmill_jobs WHERE seq = ?1
