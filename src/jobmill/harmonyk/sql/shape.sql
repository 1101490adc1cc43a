-- Check each column of a jobs table, and add missing defaults, the CHECK and the indexes. Returns what was added.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_shape(place regclass) RETURNS text[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    other regclass;
    kind text;
    wanted record;
    has record;
    definition text;
    added text[] := '{}';
BEGIN
    SELECT trigger.tgrelid INTO other
    FROM pg_trigger AS trigger
    WHERE trigger.tgfoid = '{schema}.jobs_table_inserted'::regproc AND trigger.tgrelid <> place;
    IF FOUND THEN
        RAISE 'the schema % has the jobs table % already, and can have one only', {schema_text}, other
            USING ERRCODE = 'duplicate_object', HINT = 'give the other one a schema of its own: ?schema=... in the URL';
    END IF;
    SELECT CASE
        WHEN pg_class.relkind <> 'r' THEN 'something else'
        WHEN pg_class.relispartition THEN 'a partition'
        WHEN pg_class.relpersistence = 't' THEN 'a temporary table'
        WHEN EXISTS (SELECT FROM pg_inherits WHERE pg_inherits.inhrelid = place OR pg_inherits.inhparent = place)
            THEN 'part of an inheritance'
    END INTO kind
    FROM pg_class WHERE pg_class.oid = place;
    IF kind IS NOT NULL THEN
        RAISE '%: expected an ordinary table, found %', place, kind USING ERRCODE = 'wrong_object_type';
    END IF;
    -- Triggers of the table's owner run with the rights of the role that installs it: the two must be the same.
    SELECT pg_get_userbyid(pg_class.relowner) INTO kind FROM pg_class WHERE pg_class.oid = place;
    IF kind <> current_user THEN
        RAISE '%: expected a table of %, who installs it, found one of %', place, current_user, kind
            USING ERRCODE = 'insufficient_privilege', HINT = format('SET ROLE %I first, or change the owner', kind);
    END IF;
    FOR wanted IN
        SELECT * FROM (VALUES
            ('id', 'uuid', true, 'gen_random_uuid()'),
            ('type', 'text', true, NULL),
            ('org_id', 'uuid', false, NULL),
            ('payload', 'jsonb', true, '''{}''::jsonb'),
            ('status', 'text', true, '''queued'''),
            ('attempts', 'integer', true, '0'),
            ('next_run_at', 'timestamp with time zone', false, NULL),
            ('last_error', 'text', false, NULL),
            ('created_at', 'timestamp with time zone', true, 'now()'),
            ('updated_at', 'timestamp with time zone', true, 'now()')
        ) AS seed (name, type, is_required, value)
    LOOP
        SELECT
            pg_attribute.attnum AS number, format_type(pg_attribute.atttypid, pg_attribute.atttypmod) AS type,
            pg_attribute.attnotnull AS is_required, pg_attribute.atthasdef AS has_default
        INTO has
        FROM pg_attribute
        WHERE pg_attribute.attrelid = place AND pg_attribute.attname = wanted.name AND pg_attribute.attnum > 0;
        IF has.number IS NULL OR (has.type, has.is_required) <> (wanted.type, wanted.is_required) THEN
            RAISE '%: column %: expected %, found %', place, wanted.name,
                wanted.type || CASE WHEN wanted.is_required THEN ' NOT NULL' ELSE ' NULL' END,
                coalesce(has.type || CASE WHEN has.is_required THEN ' NOT NULL' ELSE ' NULL' END, 'none')
                USING ERRCODE = 'invalid_table_definition';
        END IF;
        IF wanted.value IS NOT NULL AND NOT has.has_default THEN
            EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', place, wanted.name, wanted.value);
            added := added || format('default %s of %s', wanted.value, wanted.name);
        END IF;
    END LOOP;
    IF NOT EXISTS (
        SELECT FROM pg_index
        WHERE
            pg_index.indrelid = place AND pg_index.indisunique AND pg_index.indpred IS NULL
            AND pg_index.indimmediate AND pg_index.indisvalid
            AND pg_index.indnkeyatts = 1 AND pg_get_indexdef(pg_index.indexrelid, 1, false) = 'id'
    ) THEN
        RAISE '%: column id: expected the primary key, found none on it', place
            USING ERRCODE = 'invalid_table_definition';
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_constraint
        WHERE
            pg_constraint.conrelid = place AND pg_constraint.contype = 'c'
            AND pg_get_constraintdef(pg_constraint.oid) LIKE ALL (
                ARRAY['%status%', '%''queued''%', '%''running''%', '%''success''%', '%''failed''%']
            )
    ) THEN
        EXECUTE format(
            'ALTER TABLE %s ADD CHECK (status IN (''queued'', ''running'', ''success'', ''failed''))', place
        );
        added := added || ARRAY['CHECK of status'];
    END IF;
    FOR wanted IN
        SELECT * FROM (VALUES ('status', 'next_run_at'), ('type', 'status')) AS seed (one, two)
    LOOP
        IF NOT EXISTS (
            SELECT FROM pg_index
            WHERE
                pg_index.indrelid = place AND pg_index.indisvalid AND pg_index.indpred IS NULL
                AND pg_get_indexdef(pg_index.indexrelid, 1, false) = wanted.one
                AND pg_get_indexdef(pg_index.indexrelid, 2, false) = wanted.two
        ) THEN
            SELECT format('idx_%s_%s_%s', pg_class.relname, wanted.one, wanted.two) INTO definition
            FROM pg_class WHERE pg_class.oid = place;
            EXECUTE format('CREATE INDEX %I ON %s (%I, %I)', definition, place, wanted.one, wanted.two);
            added := added || format('index %s', definition);
        END IF;
    END LOOP;
    RETURN added;
END $$;
