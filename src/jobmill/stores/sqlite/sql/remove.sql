-- Take a job away; a trigger takes its log lines and its large payload.
-- ?1 seq.
DELETE FROM jobmill_jobs WHERE seq = ?1
