-- Reconcile the rows of the jobs table with the jobs: queued rows without a job are enqueued, other rows are written
-- from their jobs. Live jobs of the repository without a row get one, unless their tenant is no uuid. Running rows without a job belong to another program, and are left alone. Returns how many rows were
-- enqueued, and how many running rows were left.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_adopt(OUT enqueued bigint, OUT left_running bigint)
LANGUAGE plpgsql AS $$
DECLARE
    before text := current_setting('jobmill.writes_at', true);
    these uuid[];
    without_row text[];
BEGIN
    PERFORM set_config('jobmill.writes_at', pg_trigger_depth()::text, true);
    SELECT array_agg(ours.id) INTO these
    FROM {schema}.jobs_table AS ours
    LEFT JOIN {schema}.jobs ON jobs.id = ours.id::text
    LEFT JOIN {schema}.history ON history.id = ours.id::text
    WHERE jobs.id IS NOT NULL OR (history.id IS NOT NULL AND ours.status IN ('queued', 'running'));
    PERFORM {schema}.jobs_table_write(these);
    UPDATE {schema}.jobs_table AS ours SET next_run_at = {schema}.jobs_table_due(ours.next_run_at)
    WHERE
        ours.status = 'queued'
        AND (ours.next_run_at IS NULL OR ours.next_run_at <> date_trunc('milliseconds', ours.next_run_at));
    SELECT array_agg(ours.id ORDER BY ours.next_run_at, ours.created_at) INTO these
    FROM {schema}.jobs_table AS ours
    WHERE ours.status = 'queued' AND NOT EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = ours.id::text);
    enqueued := CASE WHEN these IS NULL THEN 0 ELSE {schema}.jobs_table_enqueue(these) END;
    SELECT array_agg(jobs.id) INTO without_row
    FROM {schema}.jobs
    WHERE
        jobs.options = {options} AND (jobs.tenant IS NULL OR {schema}.jobs_table_uuid(jobs.tenant) IS NOT NULL)
        AND NOT EXISTS (
            SELECT FROM {schema}.jobs_table AS ours WHERE ours.id = {schema}.jobs_table_uuid(jobs.id)
        )
        AND {schema}.jobs_table_uuid(jobs.id) IS NOT NULL;
    IF without_row IS NOT NULL THEN
        PERFORM {schema}.jobs_table_add(without_row);
    END IF;
    SELECT count(*) INTO left_running
    FROM {schema}.jobs_table AS ours
    WHERE ours.status = 'running' AND NOT EXISTS (SELECT FROM {schema}.jobs WHERE jobs.id = ours.id::text);
    PERFORM set_config('jobmill.writes_at', coalesce(before, ''), true);
END $$;
