-- The number of claims of a job that were lost before it had started, as far as is known: NULL or 1. Such a loss is no
-- crash, and the job is never claimed ahead again.
ALTER TABLE {schema}.jobs ADD COLUMN unstarted integer;
ALTER TABLE {schema}.history ADD COLUMN unstarted integer;

-- install claim
