-- BEFORE INSERT of a row: fill in next_run_at. With "next_run_at IS NULL OR" the application's own queries could not
-- use the index on (status, next_run_at).
CREATE OR REPLACE FUNCTION {schema}.jobs_table_fill() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.next_run_at := {schema}.jobs_table_due(NEW.next_run_at);
    RETURN NEW;
END $$;
