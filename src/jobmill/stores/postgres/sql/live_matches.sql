-- Live jobs that match, locked, in the order of ids.
-- $1 most; the other parameters are those of the conditions. Rows: id, name, queue, state, errors, options.
SELECT {live_row} FROM {schema}.jobs WHERE {live_where} ORDER BY jobs.id LIMIT $1 FOR UPDATE
