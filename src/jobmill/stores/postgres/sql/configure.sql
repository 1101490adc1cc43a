-- Change what is set for a queue.
-- $1 queue, $2 paused, $3 rate_count, $4 rate_per_ms, $5 running_limit, $6 feed, $7 events_max_len.
UPDATE {schema}.queues SET
    paused = $2, rate_count = $3, rate_per_ms = $4, running_limit = $5, feed = $6, events_max_len = $7
WHERE queue = $1
