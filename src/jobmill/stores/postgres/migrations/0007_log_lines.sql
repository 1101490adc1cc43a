-- Which attempt wrote a log line, and its level; NULL in lines of older versions.
ALTER TABLE {schema}.logs ADD COLUMN attempt integer;
ALTER TABLE {schema}.logs ADD COLUMN level text;

-- install report
