-- How long succeeded runs of each queue and name took, of the last $3 that finished.
-- $1 queue, $2 name (NULL: all). Rows: queue, name, durations in ms.
SELECT queue, name, array_agg(took) FROM (
    SELECT
        queue, name, finished_ms - started_ms AS took,
        row_number() OVER (PARTITION BY queue, name ORDER BY finished_ms DESC) AS nth
    FROM {schema}.history
    WHERE state = 'succeeded' AND ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR name = $2)
) AS runs
WHERE nth <= $3 GROUP BY queue, name
