-- Forget a large payload.
-- ?1 seq.
DELETE FROM jobmill_payloads WHERE seq = ?1
