-- A final job waits again, with fresh budgets. Fails on the unique index where its key has another live owner.
-- ?1 seq, ?2 now, ?3 due_ms.
UPDATE jobmill_jobs SET
    state = 'waiting', updated_ms = ?2, due_ms = ?3, errors = 0, crashes = 0, finished_ms = NULL, error = NULL,
    result = NULL, progress = NULL, doomed = NULL, keep_age_ms = NULL, keep_last = NULL
WHERE seq = ?1
