-- The queues and states in which some jobs are only kept as one of the last. No parameters.
-- Rows: queue, state, keep_last.
SELECT DISTINCT queue, state, keep_last FROM jobmill_jobs INDEXED BY jobmill_keep_last
WHERE keep_last IS NOT NULL AND (state = 'succeeded' OR state = 'failed' OR state = 'cancelled')
