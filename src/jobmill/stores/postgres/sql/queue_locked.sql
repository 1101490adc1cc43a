-- A queue's row, for changing it.
-- $1 queue. One row: all columns.
SELECT * FROM {schema}.queues WHERE queue = $1 FOR UPDATE
