-- The number of matching jobs of index ranges. $1 how many jobs of a range are examined at least, $2 how many of all.
WITH RECURSIVE {ranges},

ranges AS MATERIALIZED (
    SELECT *, row_number() OVER () AS n, greatest($1, $2 / count(*) OVER ()) AS examined FROM known WHERE {of_known}
),

seen AS (
    SELECT ranges.n, ranges.examined, jobs.matches
    FROM ranges CROSS JOIN LATERAL (
        SELECT {where} AS matches FROM (
            SELECT * FROM {from} WHERE {in_range} ORDER BY {by_range} LIMIT ranges.examined
        ) AS jobs
        OFFSET 0
    ) AS jobs
    LIMIT $2
)

SELECT coalesce(sum(seen.matches), 0)::bigint, coalesce(sum(seen.examined) >= $2 OR bool_or(seen.is_full), false)
FROM (
    SELECT count(*) FILTER (WHERE matches) AS matches, count(*) AS examined, count(*) >= max(seen.examined) AS is_full
    FROM seen GROUP BY n
) AS seen
