-- The triggers that make rows of {table} jobs, and that write changes of one to the other.

CREATE OR REPLACE VIEW {schema}.jobs_table AS
SELECT
    id, type, org_id, payload, status, attempts, next_run_at, last_error, created_at, updated_at, ctid AS place
FROM {table};

-- On writes of the application. NULL::jobs_table IS NULL is always true; it makes a trigger depend on the view.
CREATE OR REPLACE TRIGGER jobmill_fill BEFORE INSERT ON {table} FOR EACH ROW
WHEN (NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_fill();

CREATE OR REPLACE TRIGGER jobmill_inserted AFTER INSERT ON {table} REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT
WHEN ({not_ours} AND NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_inserted();

CREATE OR REPLACE TRIGGER jobmill_deciding BEFORE UPDATE ON {table} FOR EACH ROW
WHEN (
    {foreign}
)
EXECUTE FUNCTION {schema}.jobs_table_deciding();

CREATE OR REPLACE TRIGGER jobmill_updated AFTER UPDATE ON {table} FOR EACH ROW
WHEN (
    {foreign}
)
EXECUTE FUNCTION {schema}.jobs_table_updated();

CREATE OR REPLACE TRIGGER jobmill_deleted AFTER DELETE ON {table} REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT
WHEN (NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_deleted();

CREATE OR REPLACE TRIGGER jobmill_truncating BEFORE TRUNCATE ON {table} FOR EACH STATEMENT
WHEN (NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_truncating();

DROP TRIGGER IF EXISTS at_commit ON {schema}.jobs_table_asked;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON {schema}.jobs_table_asked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION {schema}.jobs_table_at_commit();

-- On writes of the store.
CREATE OR REPLACE TRIGGER jobs_table_added AFTER INSERT ON {schema}.jobs FOR EACH ROW
WHEN (NEW.options = {options} AND {not_ours} AND NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_job_added();

CREATE OR REPLACE TRIGGER jobs_table_changed AFTER UPDATE ON {schema}.jobs
REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
WHEN (NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_job_changed();

CREATE OR REPLACE TRIGGER jobs_table_ended AFTER INSERT ON {schema}.history
REFERENCING NEW TABLE AS changed FOR EACH STATEMENT
WHEN (NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_job_changed();

CREATE OR REPLACE TRIGGER jobs_table_requeued AFTER DELETE ON {schema}.history
REFERENCING OLD TABLE AS changed FOR EACH STATEMENT
WHEN (NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_job_changed();

-- Where a trigger deletes a job (depth 1), its row is deleted too, or is written by that trigger. Running jobs are
-- never removed.
CREATE OR REPLACE TRIGGER jobs_table_removed AFTER DELETE ON {schema}.jobs FOR EACH ROW
WHEN (OLD.lease_until_ms = 0 AND pg_trigger_depth() = 0 AND NULL::{schema}.jobs_table IS NULL)
EXECUTE FUNCTION {schema}.jobs_table_job_removed();

-- Lets the store write all rows also where row-level security is forced on the table's owner.
DROP POLICY IF EXISTS jobmill ON {table};
CREATE POLICY jobmill ON {table} TO CURRENT_USER
USING (current_setting('jobmill.writes_at', true) <> '' AND NULL::{schema}.jobs_table IS NULL);

-- Only these triggers call them.
REVOKE ALL ON FUNCTION
    {schema}.jobs_table_fill(), {schema}.jobs_table_inserted(), {schema}.jobs_table_deciding(),
    {schema}.jobs_table_updated(), {schema}.jobs_table_deleted(), {schema}.jobs_table_truncating(),
    {schema}.jobs_table_at_commit(), {schema}.jobs_table_job_changed(), {schema}.jobs_table_job_removed(),
    {schema}.jobs_table_job_added(), {schema}.jobs_table_add(text[]),
    {schema}.jobs_table_enqueue(uuid[]), {schema}.jobs_table_write(uuid[]), {schema}.jobs_table_leave(text[]),
    {schema}.jobs_table_cancel(text[]), {schema}.jobs_table_remove(text[])
FROM PUBLIC;
