-- Where the next job will be inserted behind. No parameters.
-- One row: the last seq.
SELECT coalesce(max(seq), 0) FROM jobmill_jobs
