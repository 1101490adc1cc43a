-- Make a queue's row, if there is none.
-- $1 queue.
INSERT INTO {schema}.queues (queue) VALUES ($1) ON CONFLICT DO NOTHING
