-- The number of a job's last log line.
-- ?1 seq. One row: the number, 0 without any.
SELECT coalesce(max(line), 0) FROM jobmill_logs WHERE seq = ?1
