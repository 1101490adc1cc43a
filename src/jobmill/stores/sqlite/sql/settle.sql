-- Settle anything else, under the guard. A re-arm decided from an older recurrence leaves due time and slot as they are.
-- ?1 now; per lease: seq, token, state, errors, crashes, error, result, tracebacks, keep_age_ms, keep_last, due_ms,
--   slot_ms, revision, runs, failed_runs, last_error. NULL leaves tracebacks, due time, slot and runs as they are.
UPDATE jobmill_jobs AS jobs SET
    state = done.column3, token = NULL, lease_until_ms = NULL, updated_ms = ?1,
    finished_ms = CASE WHEN done.column3 = 'waiting' THEN jobs.finished_ms ELSE ?1 END,
    progress = CASE WHEN done.column3 = 'waiting' THEN NULL ELSE jobs.progress END,
    errors = done.column4, crashes = done.column5, error = done.column6, result = done.column7,
    tracebacks = coalesce(done.column8, jobs.tracebacks),
    keep_age_ms = done.column9, keep_last = done.column10,
    due_ms = CASE
        WHEN done.column13 IS NULL OR jobs.recurrence IS NULL THEN coalesce(done.column11, jobs.due_ms)
        WHEN done.column13 <> coalesce(json_extract(jobs.recurrence, '$.revision'), 0) THEN jobs.due_ms
        ELSE coalesce(done.column11, jobs.due_ms)
    END,
    slot_ms = CASE
        WHEN done.column13 IS NULL OR jobs.recurrence IS NULL THEN coalesce(done.column12, jobs.slot_ms)
        WHEN done.column13 <> coalesce(json_extract(jobs.recurrence, '$.revision'), 0) THEN jobs.slot_ms
        ELSE coalesce(done.column12, jobs.slot_ms)
    END,
    runs = coalesce(done.column14, jobs.runs),
    failed_runs = coalesce(done.column15, jobs.failed_runs),
    last_error = CASE WHEN done.column14 IS NULL THEN jobs.last_error ELSE done.column16 END,
    last_finished_ms = CASE WHEN done.column14 IS NULL THEN jobs.last_finished_ms ELSE ?1 END
FROM (VALUES {rows of 16 from ?2}) AS done
WHERE
    jobs.seq = done.column1 AND jobs.token = done.column2 AND jobs.state = 'running' AND jobs.lease_until_ms > ?1
