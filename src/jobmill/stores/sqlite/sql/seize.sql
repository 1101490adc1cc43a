-- A live job runs under another lease: a claim that counts no crash, for the job was not left alone.
-- ?1 seq, ?2 now, ?3 token, ?4 lease_until_ms, ?5 worker.
UPDATE jobmill_jobs SET
    state = 'running', token = ?3, lease_until_ms = ?4, started_ms = ?2, updated_ms = ?2, worker = ?5, claims = claims + 1
WHERE seq = ?1
