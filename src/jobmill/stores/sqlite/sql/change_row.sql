-- What a change must know of a job.
-- ?1 id. One row: seq, id, name, queue, state, errors, options.
SELECT seq, id, name, queue, state, errors, options FROM jobmill_jobs WHERE id = ?1
