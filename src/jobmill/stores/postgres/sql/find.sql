-- A page of jobs in the order of their ids, from both tables. {live_where} and {final_where} are conditions, {order} is DESC
-- or ASC. $1 most; the other parameters are those of the conditions. Each side has an index in this order.
SELECT * FROM (
    (SELECT {read} FROM {live} WHERE {live_where} ORDER BY jobs.id {order} LIMIT $1)
    UNION ALL
    (SELECT {read} FROM {schema}.history AS jobs WHERE {final_where} ORDER BY jobs.id {order} LIMIT $1)
) AS found ORDER BY id {order} LIMIT $1
