-- Write one queue's row.
-- ?1 queue, then all other columns in their order.
INSERT OR REPLACE INTO jobmill_queues (
    queue, paused, rate_count, rate_per_ms, running_limit, feed, events_max_len, window_ends_ms, window_used, last_event
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
