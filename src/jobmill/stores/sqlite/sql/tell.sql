-- Add events to a feed.
-- Per event: queue, number, the event as JSON.
INSERT INTO jobmill_events (queue, number, event) VALUES {rows of 3 from ?1}
