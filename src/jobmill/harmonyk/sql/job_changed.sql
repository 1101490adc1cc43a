-- AFTER UPDATE of jobs, INSERT into the history and DELETE from it (a requeue): write the rows of these jobs.
-- Measured in one run, settle + claim of 100: 20 us of server time and 645 B of log a job without a jobs table; with
-- one 21 us for other jobs, 61 us and 1,750 B for its own (for each row, 6 us to find and lock it and 9 to update it).
-- One job at a time: 335 us without, 617 with.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_job_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    these uuid[];
    leaving text[];
BEGIN
    -- Ids of other jobs need not be uuids. Most are recognized by their options: checking each id would take 2 us a
    -- job.
    BEGIN
        SELECT array_agg(changed.id::uuid) INTO these
        FROM changed WHERE changed.options = {options} AND octet_length(changed.id) = 36;
    EXCEPTION WHEN invalid_text_representation THEN
        SELECT array_agg({schema}.jobs_table_uuid(changed.id)) INTO these
        FROM changed WHERE {schema}.jobs_table_uuid(changed.id) IS NOT NULL;
    END;
    IF these IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.jobs_table_write(these);
    IF TG_OP = 'INSERT' THEN
        -- Jobs that are not kept are in the history only for this trigger: see the store's settle_final.sql.
        SELECT array_agg(changed.id) INTO leaving
        FROM changed WHERE changed.expires_ms <= changed.finished_ms OR changed.keep_last <= 0;
        IF leaving IS NOT NULL THEN
            PERFORM {schema}.jobs_table_leave(leaving);
        END IF;
    END IF;
    IF EXISTS (SELECT FROM {schema}.jobs_table_unwritten) THEN
        PERFORM {schema}.jobs_table_catch_up(100);
    END IF;
    RETURN NULL;
END $$;

-- Delete final jobs that are not kept from the history; those whose rows are still to be written are kept for a day.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_leave(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    noted text[];
BEGIN
    SELECT coalesce(array_agg(note.id::text), '{}') INTO noted
    FROM {schema}.jobs_table_unwritten AS note WHERE note.id::text = ANY (these);
    UPDATE {schema}.history SET expires_ms = finished_ms + {day_ms}, keep_last = NULL WHERE history.id = ANY (noted);
    DELETE FROM {schema}.history WHERE history.id = ANY (these) AND history.id <> ALL (noted);
END $$;

-- AFTER DELETE of a waiting job: where it was not cancelled, it was removed; write that to its row.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_job_removed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this uuid := {schema}.jobs_table_uuid(OLD.id);
BEGIN
    IF this IS NOT NULL AND NOT EXISTS (SELECT FROM {schema}.history WHERE history.id = OLD.id) THEN
        PERFORM {schema}.jobs_table_write(ARRAY[this]);
    END IF;
    RETURN NULL;
END $$;
