-- A page of matches below a seq, newest first.
-- The conditions' parameters, then seq, most. Rows: seq.
SELECT jobs.seq FROM jobmill_jobs AS jobs WHERE {conditions} AND jobs.seq < ? ORDER BY jobs.seq DESC LIMIT ?
