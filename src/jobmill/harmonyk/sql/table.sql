-- The jobs table {table}: an application's own table, whose rows are jobs.
-- Its triggers depend on the view jobs_table, by which our functions find the table also after it was renamed:
-- DROP VIEW {schema}.jobs_table CASCADE leaves a plain table.

CREATE TABLE IF NOT EXISTS {table} (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    type text NOT NULL,
    org_id uuid NULL,
    payload jsonb NOT NULL DEFAULT '{}'::jsonb,
    status text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'running', 'success', 'failed')),
    attempts integer NOT NULL DEFAULT 0,
    next_run_at timestamptz NULL,
    last_error text NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE;

-- Rows that could not be written because they were locked, and jobs whose rows are deleted. Almost always empty.
-- Without an index, because noting a row must not wait for another transaction.
CREATE TABLE IF NOT EXISTS {schema}.jobs_table_unwritten (id uuid NOT NULL, is_gone boolean NOT NULL DEFAULT false);

-- Running jobs that an open transaction will change at its end; restarts: cancelled and queued again.
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.jobs_table_asked (
    id uuid NOT NULL, restarts boolean NOT NULL DEFAULT false
);

-- Functions that only the first version had.
DROP FUNCTION IF EXISTS
    {schema}.jobs_table_cancel(text[], bigint, bigint[], integer[]),
    {schema}.jobs_table_edit(text, text, text, integer, bigint, boolean, text, text);

-- install values
-- install tell
-- install ending
-- install enqueue
-- install fill
-- install inserted
-- install deciding
-- install updated
-- install deleted
-- install at_commit
-- install write
-- install add
-- install catch_up
-- install job_changed
-- install shape
-- install adopt
