-- A page of jobs in the order of their ids, from both tables; each has an index in this order. $1 limit, $2 how many jobs
-- of each table are examined; the other parameters are those of the conditions. {order} is DESC or ASC, {last} GREATEST
-- or LEAST. Rows: `ended`, where the search ended because it has examined that many, and a job or NULL.
-- A subquery with a LIMIT is planned by itself: it reads in the order of the index, whatever the other conditions are.
WITH live AS MATERIALIZED (
    SELECT jobs.id
    FROM (SELECT * FROM {live} WHERE {live_range} ORDER BY jobs.id {order} LIMIT $2) AS jobs
    WHERE {live_where} ORDER BY jobs.id {order} LIMIT $1
),

final AS MATERIALIZED (
    SELECT jobs.id
    FROM (SELECT * FROM {schema}.history AS jobs WHERE {final_range} ORDER BY jobs.id {order} LIMIT $2) AS jobs
    WHERE {final_where} ORDER BY jobs.id {order} LIMIT $1
),

ended AS MATERIALIZED (
    SELECT {last}(
        CASE
            WHEN (SELECT count(*) FROM live) < $1 THEN (
                SELECT jobs.id FROM {live} WHERE {live_range} ORDER BY jobs.id {order} OFFSET $2 - 1 LIMIT 1
            )
        END,
        CASE
            WHEN (SELECT count(*) FROM final) < $1 THEN (
                SELECT jobs.id FROM {schema}.history AS jobs
                WHERE {final_range} ORDER BY jobs.id {order} OFFSET $2 - 1 LIMIT 1
            )
        END
    ) AS id
),

page AS MATERIALIZED (
    SELECT id FROM (SELECT id FROM live UNION ALL SELECT id FROM final) AS found
    WHERE id {beyond} (SELECT id FROM ended) IS NOT TRUE ORDER BY id {order} LIMIT $1
)

SELECT ended.id AS ended, found.*
FROM ended LEFT JOIN (
    SELECT {read} FROM page JOIN {live} ON jobs.id = page.id
    UNION ALL
    SELECT {read} FROM page JOIN {schema}.history AS jobs ON jobs.id = page.id
) AS found ON true
ORDER BY found.id {order}
