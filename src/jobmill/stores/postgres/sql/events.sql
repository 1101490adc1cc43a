-- The feed of a queue after a number; those that trimming has not reached are left out.
-- $1 queue, $2 number, $3 most. Rows: number, event.
SELECT events.number, events.event
FROM {schema}.events
JOIN {schema}.queues ON queues.queue = events.queue AND events.number > queues.last_event - queues.events_max_len
WHERE events.queue = $1 AND events.number > $2
ORDER BY events.number LIMIT $3
