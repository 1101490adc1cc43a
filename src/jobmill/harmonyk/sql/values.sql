-- Conversions: timestamps to whole milliseconds and back, exact until the year 9999.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_ms(instant timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN floor(extract(epoch FROM instant) * 1000)::bigint;

CREATE OR REPLACE FUNCTION {schema}.jobs_table_at(ms bigint) RETURNS timestamptz LANGUAGE sql STABLE
    RETURN timestamptz '1970-01-01 00:00:00+00' + ms / 1000 * interval '1 second' + ms % 1000 * interval '1 ms';

-- When a row is to run: its value rounded down to milliseconds, or now.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_due(next_run_at timestamptz) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF next_run_at < '1970-01-01 00:00:00+00' OR next_run_at >= '10000-01-01 00:00:00+00' THEN
        RAISE 'next_run_at: expected a time in the years 1970 to 9999 of UTC, got %', next_run_at
            USING ERRCODE = 'invalid_parameter_value', HINT = 'leave it out, or NULL, for now';
    END IF;
    RETURN date_trunc('milliseconds', coalesce(next_run_at, clock_timestamp()));
END $$;

CREATE OR REPLACE FUNCTION {schema}.jobs_table_attempts(attempts integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF attempts < 0 THEN
        RAISE 'attempts: expected 0 or more, got %', attempts USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- An id as a uuid; NULL where it is not a uuid in PostgreSQL's own form.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_uuid(id text) RETURNS uuid LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN id::uuid END;
