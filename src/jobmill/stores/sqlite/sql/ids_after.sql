-- The jobs that were inserted behind a seq.
-- ?1 seq. Rows: id.
SELECT id FROM jobmill_jobs WHERE seq > ?1
