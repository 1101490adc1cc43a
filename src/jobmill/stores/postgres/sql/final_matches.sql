-- Final jobs that match, locked, in the order of ids.
-- $1 most; the other parameters are those of the conditions. Rows: id, name, queue, state, errors, options.
SELECT {row} FROM {schema}.history AS jobs WHERE {final_where} ORDER BY jobs.id LIMIT $1 FOR UPDATE
