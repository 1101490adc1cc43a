-- Note that somebody sleeps and wants to be told of work; forget those who have not said so for long.
-- $1 who, $2 queues, $3 for how many ms.
WITH gone AS (
    DELETE FROM {schema}.sleepers WHERE until_ms < {schema}.now_ms() - 60000 AND listener <> $1
)

INSERT INTO {schema}.sleepers (listener, queues, until_ms) VALUES ($1, $2::text[], {schema}.now_ms() + $3::bigint)
ON CONFLICT (listener) DO UPDATE SET queues = excluded.queues, until_ms = excluded.until_ms
