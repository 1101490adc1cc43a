-- All queues that have settings. No parameters.
-- Rows: queue and all other columns, in the order of the table.
SELECT
    queue, paused, rate_count, rate_per_ms, running_limit, feed, events_max_len, window_ends_ms, window_used, last_event
FROM jobmill_queues ORDER BY queue
