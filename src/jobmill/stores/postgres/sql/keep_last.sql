-- The queues and states in which some jobs are only kept as one of the last. No parameters.
-- Rows: queue, state, keep_last.
SELECT DISTINCT queue, state, keep_last FROM {schema}.history WHERE keep_last IS NOT NULL
