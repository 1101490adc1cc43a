-- The same of jobs that match, oldest first.
-- The conditions' parameters, then most. Rows: seq, id, name, queue, state, errors, options.
SELECT jobs.seq, jobs.id, jobs.name, jobs.queue, jobs.state, jobs.errors, jobs.options
FROM jobmill_jobs AS jobs WHERE {conditions} ORDER BY jobs.seq LIMIT ?
