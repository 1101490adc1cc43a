-- Settle all that is no plain success, under the guard. NULL keeps attempts, due time, occurrence and runs.
-- ?1 now; per lease: seq, token, state, errors, crashes, error, result, attempts, keep_age_ms, keep_last, due_ms,
--   slot_ms, runs, failed_runs, last_error, waits_for.
UPDATE jobmill_jobs AS jobs SET
    state = done.column3, token = NULL, lease_until_ms = NULL, updated_ms = ?1,
    finished_ms = CASE WHEN done.column3 = 'waiting' THEN jobs.finished_ms ELSE ?1 END,
    progress = CASE WHEN done.column3 = 'waiting' THEN NULL ELSE jobs.progress END,
    errors = done.column4, crashes = done.column5, error = done.column6, result = done.column7,
    attempts = coalesce(done.column8, jobs.attempts),
    keep_age_ms = done.column9, keep_last = done.column10,
    due_ms = coalesce(done.column11, jobs.due_ms),
    slot_ms = coalesce(done.column12, jobs.slot_ms),
    runs = coalesce(done.column13, jobs.runs),
    failed_runs = coalesce(done.column14, jobs.failed_runs),
    last_error = CASE WHEN done.column13 IS NULL THEN jobs.last_error ELSE done.column15 END,
    last_finished_ms = CASE WHEN done.column13 IS NULL THEN jobs.last_finished_ms ELSE ?1 END,
    waits_for = done.column16
FROM (VALUES {rows of 16 from ?2}) AS done
WHERE
    jobs.seq = done.column1 AND jobs.token = done.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
