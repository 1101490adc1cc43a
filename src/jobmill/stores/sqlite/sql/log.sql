-- Add log lines.
-- Per line: seq, its number, at_ms, text.
INSERT INTO jobmill_logs (seq, line, at_ms, text) VALUES {rows of 4 from ?1}
