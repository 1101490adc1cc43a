-- Short statements, and parts of statements, each after its name.

-- name: shape_call
-- Check the table, and add what it lacks. One value: what was added.
SELECT {schema}.jobs_table_shape({table_text})

-- name: adopt_call
-- Bring rows and jobs together. One row: enqueued, left_running.
SELECT enqueued, left_running FROM {schema}.jobs_table_adopt()

-- name: installed
-- The jobs table of the schema, who installed it, and the present role. One row, or none.
SELECT format('%I.%I', pg_namespace.nspname, pg_class.relname), pg_get_userbyid(pg_proc.proowner), current_user
FROM pg_trigger
JOIN pg_class ON pg_class.oid = pg_trigger.tgrelid
JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
JOIN pg_proc ON pg_proc.oid = pg_trigger.tgfoid
WHERE pg_trigger.tgfoid = to_regproc('{schema}.jobs_table_inserted')

-- name: not_ours
-- Whether a statement is not part of our own writing. A condition.
pg_trigger_depth()::text IS DISTINCT FROM current_setting('jobmill.writes_at', true)

-- name: foreign
-- Whether an UPDATE of the jobs table is not our own, and changes a column that a job is made of. A condition.
{not_ours}
AND (OLD.id, OLD.type, OLD.org_id, OLD.payload, OLD.status, OLD.attempts, OLD.next_run_at, OLD.last_error)
IS DISTINCT FROM (NEW.id, NEW.type, NEW.org_id, NEW.payload, NEW.status, NEW.attempts, NEW.next_run_at, NEW.last_error)
AND NULL::{schema}.jobs_table IS NULL
