-- Whether an UPDATE of the jobs table is not our own, and changes what a job is made of.
-- Put in place of {jobs_table_foreign}.
pg_trigger_depth()::text IS DISTINCT FROM current_setting('jobmill.writes_at', true)
AND (OLD.id, OLD.type, OLD.org_id, OLD.payload, OLD.status, OLD.attempts, OLD.next_run_at, OLD.last_error)
IS DISTINCT FROM (NEW.id, NEW.type, NEW.org_id, NEW.payload, NEW.status, NEW.attempts, NEW.next_run_at, NEW.last_error)
AND NULL::{schema}.jobs_table IS NULL
