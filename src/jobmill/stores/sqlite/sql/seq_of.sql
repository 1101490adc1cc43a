-- Where a job is.
-- ?1 id. One row: seq.
SELECT seq FROM jobmill_jobs WHERE id = ?1
