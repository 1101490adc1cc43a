-- Note what runs in a queue that gets a running limit.
-- $1 queue.
INSERT INTO {schema}.running (queue, id)
SELECT queue, id FROM {schema}.jobs WHERE queue = $1 AND lease_until_ms > 0
ON CONFLICT DO NOTHING
