-- One job by seq, for when it cannot be read together with others.
-- ?1 seq. One row: its id, queue and name, and its JSON as a blob.
SELECT jobs.id, jobs.queue, jobs.name, CAST({job} AS BLOB) FROM jobmill_jobs AS jobs WHERE jobs.seq = ?1
