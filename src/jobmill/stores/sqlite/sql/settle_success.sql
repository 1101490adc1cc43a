-- Settle plain successes, the common case: the columns that a success changes, under the guard.
-- ?1 now; per lease: seq, token, errors, crashes, result, keep_age_ms, keep_last.
-- OR FAIL: a statement that fails is not undone alone, but with its transaction. Otherwise SQLite copies each page before
-- the first change. Measured with 100 jobs on pages of their own: 4.3 us a job without it, 3.8 with it.
UPDATE OR FAIL jobmill_jobs AS jobs SET
    state = 'succeeded', token = NULL, lease_until_ms = NULL, finished_ms = ?1, updated_ms = ?1, error = NULL,
    errors = done.column3, crashes = done.column4, result = done.column5,
    keep_age_ms = done.column6, keep_last = done.column7
FROM (VALUES {rows of 7 from ?2}) AS done
WHERE
    jobs.seq = done.column1 AND jobs.token = done.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
