-- Add events to the feeds that are on. In order: position follows it.
-- $1 queues, $2 events as JSON texts. Rows: the queues whose feeds are on.
WITH given AS (
    SELECT one.queue, one.event, one.n
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS one (queue, event, n)
    JOIN {schema}.queues ON queues.queue = one.queue AND queues.feed
),

told AS (
    INSERT INTO {schema}.events (queue, event) SELECT given.queue, given.event FROM given ORDER BY given.n
)

SELECT DISTINCT given.queue FROM given
