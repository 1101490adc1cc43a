-- Keep the last log lines.
-- ?1 seq, ?2 the number of the last line to go.
DELETE FROM jobmill_logs WHERE seq = ?1 AND line <= ?2
