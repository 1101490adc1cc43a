-- Jobs by id.
-- $1 ids. Rows: jobs, in any order.
SELECT {read} FROM {live} WHERE jobs.id = ANY ($1::text[])
UNION ALL
SELECT {read} FROM {schema}.history AS jobs WHERE jobs.id = ANY ($1::text[])
