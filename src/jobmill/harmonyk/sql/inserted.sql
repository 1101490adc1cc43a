-- AFTER INSERT: queued rows become jobs, in the same transaction. Rows that ON CONFLICT DO NOTHING skipped are not
-- included.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_inserted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    these uuid[];
    taken text;
BEGIN
    IF EXISTS (SELECT FROM inserted WHERE inserted.status = 'running') THEN
        RAISE 'status: a new row may be queued, which enqueues it, or success or failed, a record only; got running'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'workers say what runs';
    END IF;
    SELECT array_agg(inserted.id) INTO these FROM inserted WHERE inserted.status = 'queued';
    IF these IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT history.id INTO taken FROM {schema}.history WHERE history.id = ANY (these::text[]) LIMIT 1;
    IF taken IS NOT NULL OR {schema}.jobs_table_enqueue(these) < cardinality(these) THEN
        RAISE 'id: there is a job % already, which did not come from this table',
            coalesce(taken, (SELECT jobs.id FROM {schema}.jobs WHERE jobs.id = ANY (these::text[]) LIMIT 1))
            USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NULL;
END $$;
