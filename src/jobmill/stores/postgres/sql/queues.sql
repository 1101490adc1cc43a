-- All queues that have settings. No parameters.
-- Rows: all columns.
SELECT * FROM {schema}.queues ORDER BY queue
