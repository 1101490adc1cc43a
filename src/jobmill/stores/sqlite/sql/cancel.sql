-- Cancel a live job; the token goes, so that whoever runs it loses the lease.
-- ?1 seq, ?2 now, ?3 keep_age_ms, ?4 keep_last.
UPDATE jobmill_jobs SET
    state = 'cancelled', token = NULL, lease_until_ms = NULL, finished_ms = ?2, updated_ms = ?2,
    keep_age_ms = ?3, keep_last = ?4
WHERE seq = ?1
