-- Give a live job another payload.
-- ?1 seq, ?2 now, ?3 payload (NULL: it is large, and lies beside).
UPDATE jobmill_jobs SET updated_ms = ?2, payload = ?3 WHERE seq = ?1
