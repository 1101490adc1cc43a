-- Put a large payload beside its job.
-- ?1 id, ?2 payload.
INSERT OR REPLACE INTO jobmill_payloads (seq, payload) SELECT seq, ?2 FROM jobmill_jobs WHERE id = ?1
