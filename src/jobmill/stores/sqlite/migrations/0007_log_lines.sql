-- Which attempt wrote a log line, and its level; NULL in lines of older versions.
ALTER TABLE jobmill_logs ADD COLUMN attempt INTEGER;
ALTER TABLE jobmill_logs ADD COLUMN level TEXT;
