-- Live jobs by id, locked, in the order of ids.
-- $1 ids. Rows: id, name, queue, state, errors, options.
SELECT {live_row} FROM {schema}.jobs WHERE jobs.id = ANY ($1::text[]) ORDER BY jobs.id FOR UPDATE
