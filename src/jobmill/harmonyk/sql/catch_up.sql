-- Write rows that were locked when their jobs changed, and remove the jobs of deleted rows; at most `most` of them.
-- A row is locked before its job is read: a transaction that changes the job after that finds the row locked, and notes
-- it again. The store's purge calls this function.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_catch_up(most integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    before text := current_setting('jobmill.writes_at', true);
    noted uuid[];
    free uuid[];
    gone uuid[];
BEGIN
    PERFORM set_config('jobmill.writes_at', pg_trigger_depth()::text, true);
    SELECT
        array_agg(DISTINCT note.id) FILTER (WHERE NOT note.is_gone),
        array_agg(DISTINCT note.id) FILTER (WHERE note.is_gone)
    INTO noted, gone
    FROM (SELECT * FROM {schema}.jobs_table_unwritten LIMIT most) AS note;
    IF noted IS NOT NULL THEN
        SELECT array_agg(ours.id) INTO free
        FROM (
            SELECT mine.id FROM {schema}.jobs_table AS mine
            WHERE mine.id = ANY (noted) FOR NO KEY UPDATE OF mine SKIP LOCKED
        ) AS ours;
        -- Rows that do not exist any more need not be written.
        DELETE FROM {schema}.jobs_table_unwritten AS note
        WHERE
            note.id = ANY (noted) AND NOT note.is_gone
            AND (
                note.id = ANY (free) OR NOT EXISTS (SELECT FROM {schema}.jobs_table AS ours WHERE ours.id = note.id)
            );
        PERFORM {schema}.jobs_table_write(free);
    END IF;
    IF gone IS NOT NULL THEN
        DELETE FROM {schema}.jobs_table_unwritten AS note WHERE note.id = ANY (gone) AND note.is_gone;
        PERFORM {schema}.jobs_table_remove(gone::text[]);
    END IF;
    PERFORM set_config('jobmill.writes_at', coalesce(before, ''), true);
END $$;
