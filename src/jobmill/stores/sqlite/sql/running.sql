-- How many jobs of a queue run under a lease that has not ended.
-- ?1 queue, ?2 now (-1: all that run). One row: the number.
SELECT count(*) FROM jobmill_jobs WHERE state = 'running' AND queue = ?1 AND lease_until_ms > ?2
