-- Store progress and log lines of running jobs, under the guard; the last {log_lines} lines of each job are kept.
-- reports: a JSON array of {id, token, progress, lines, attempt, level}. Rows: id, and its number of errors; NULL where the lease is
-- lost.
CREATE OR REPLACE FUNCTION {schema}.report(at_ms bigint, reports json)
RETURNS TABLE (id text, errors integer) LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    one record;
    job record;
    lines integer;
BEGIN
    FOR one IN
        SELECT * FROM ROWS FROM (
            json_to_recordset(reports)
            AS (id text, token text, progress text, lines text[], attempt integer, level text)
        ) WITH ORDINALITY AS given (id, token, progress, lines, attempt, level, position)
        ORDER BY given.id, given.position
    LOOP
        SELECT jobs.log_lines, jobs.errors INTO job
        FROM {schema}.jobs
        WHERE jobs.id = one.id AND jobs.token = one.token AND jobs.lease_until_ms > now_ms
        FOR UPDATE;
        IF NOT FOUND THEN
            RETURN QUERY SELECT one.id, NULL::integer;
            CONTINUE;
        END IF;
        lines := cardinality(one.lines);
        IF lines > 0 THEN
            INSERT INTO {schema}.logs (id, line, at_ms, text, attempt, level)
            SELECT one.id, coalesce(job.log_lines, 0) + line.n, now_ms, line.text, one.attempt, one.level
            FROM unnest(one.lines) WITH ORDINALITY AS line (text, n)
            WHERE line.n > lines - {log_lines};
            DELETE FROM {schema}.logs
            WHERE logs.id = one.id AND logs.line <= coalesce(job.log_lines, 0) + lines - {log_lines};
            UPDATE {schema}.jobs SET log_lines = coalesce(job.log_lines, 0) + lines WHERE jobs.id = one.id;
        END IF;
        IF one.progress IS NOT NULL THEN
            UPDATE {schema}.jobs SET updated_ms = now_ms, progress = one.progress WHERE jobs.id = one.id;
        END IF;
        RETURN QUERY SELECT one.id, job.errors;
    END LOOP;
END $$;
