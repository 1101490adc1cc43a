-- How many jobs match, by queue, name and state. The parameters are those of the conditions.
SELECT queue, name, state, count(*) FROM {live} WHERE {live_where} GROUP BY queue, name, state
UNION ALL
SELECT queue, name, state, count(*) FROM {schema}.history AS jobs WHERE {final_where} GROUP BY queue, name, state
