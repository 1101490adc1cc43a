-- Keep final jobs as long as the jobs that wait for them, or have waited for them. Their own retention applies later, see
-- `unpin`. Meanwhile no purge finds them, so that it need not pass over them each time.
CREATE OR REPLACE FUNCTION {schema}.pin(these text[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE {schema}.history SET
        has_dependents = true, pinned_expires_ms = coalesce(expires_ms, pinned_expires_ms),
        pinned_keep_last = coalesce(keep_last, pinned_keep_last), expires_ms = NULL, keep_last = NULL
    WHERE
        history.id = ANY (these)
        AND (history.has_dependents IS NULL OR history.expires_ms IS NOT NULL OR history.keep_last IS NOT NULL);
END $$;

-- Mark jobs before edges lead to them, and lock them: none of them can end, be requeued or be purged until the commit.
-- Rows: those that exist. A job may move from one table to the other between two statements; the last finds a job that was
-- requeued meanwhile.
CREATE OR REPLACE FUNCTION {schema}.mark_dependencies(now_ms bigint, these text[])
RETURNS TABLE (id text, is_live boolean, recurs boolean) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    missing text[] := these;
    locked text[];
BEGIN
    FOR turn IN 1..2 LOOP
        SELECT array_agg(one.id) INTO locked
        FROM (
            SELECT jobs.id FROM {schema}.jobs WHERE jobs.id = ANY (missing) ORDER BY jobs.id FOR KEY SHARE
        ) AS one;
        IF locked IS NOT NULL THEN
            UPDATE {schema}.jobs SET has_dependents = true WHERE jobs.id = ANY (locked) AND jobs.has_dependents IS NULL;
            -- A claim passes over a locked job.
            INSERT INTO {schema}.rewinds
            SELECT pg_current_xact_id() FROM {schema}.jobs
            WHERE jobs.id = ANY (locked) AND jobs.lease_until_ms = 0 AND jobs.due_ms <= now_ms
            LIMIT 1 ON CONFLICT DO NOTHING;
            RETURN QUERY
            SELECT jobs.id, true, jobs.recurrence IS NOT NULL FROM {schema}.jobs WHERE jobs.id = ANY (locked);
            missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(locked));
        END IF;
        EXIT WHEN cardinality(missing) = 0 OR turn = 2;
        SELECT array_agg(one.id) INTO locked
        FROM (
            SELECT history.id FROM {schema}.history WHERE history.id = ANY (missing) ORDER BY history.id FOR KEY SHARE
        ) AS one;
        IF locked IS NOT NULL THEN
            PERFORM {schema}.pin(locked);
            RETURN QUERY SELECT final.id, false, false FROM unnest(locked) AS final (id);
            missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(locked));
        END IF;
        EXIT WHEN cardinality(missing) = 0;
    END LOOP;
END $$;

-- Add edges to held jobs, and release those that need not wait. `own`: jobs that this transaction has made, and marked as
-- dependencies. Rows: dependencies for which nothing was done, and why: 'unknown', 'recurring', or 'live' where `inside` a
-- transaction of the caller's, which would keep a live job locked.
CREATE OR REPLACE FUNCTION {schema}.add_edges(
    now_ms bigint, inside boolean, own text[], job_ids text[], numbers integer[], on_ids text[], if_faileds text[]
) RETURNS TABLE (id text, problem text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    others text[] := ARRAY(SELECT unnest(on_ids) EXCEPT SELECT unnest(own));
    known text[] := '{}';
    final text[];
    recurring text[];
    again text[];
BEGIN
    IF cardinality(others) > 0 THEN
        IF inside THEN
            RETURN QUERY SELECT jobs.id, 'live' FROM {schema}.jobs WHERE jobs.id = ANY (others);
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
        SELECT
            coalesce(array_agg(one.id), '{}'), array_agg(one.id) FILTER (WHERE NOT one.is_live),
            array_agg(one.id) FILTER (WHERE one.recurs)
        INTO known, final, recurring FROM {schema}.mark_dependencies(now_ms, others) AS one;
        RETURN QUERY
        SELECT one.id, 'unknown' FROM unnest(others) AS one (id) WHERE one.id <> ALL (known)
        UNION ALL
        SELECT one.id, 'recurring' FROM unnest(recurring) AS one (id);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- Former jobs of the same ids.
    SELECT array_agg(dropped.id) INTO again FROM {schema}.dropped WHERE dropped.id = ANY (job_ids);
    IF again IS NOT NULL THEN
        PERFORM {schema}.drop_edges(again, NULL);
    END IF;
    INSERT INTO {schema}.edges (job_id, number, on_id, if_failed)
    SELECT * FROM unnest(job_ids, numbers, on_ids, if_faileds);
    IF final IS NOT NULL THEN
        PERFORM {schema}.release(now_ms, final, '{}', job_ids, NULL);
    END IF;
END $$;

-- The same for new jobs, which may be made without the right to change others: a job that has edges gets no more.
CREATE OR REPLACE FUNCTION {schema}.enqueue_edges(
    now_ms bigint, inside boolean, own text[], job_ids text[], numbers integer[], on_ids text[], if_faileds text[]
) RETURNS TABLE (id text, problem text) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (
        SELECT FROM {schema}.jobs
        WHERE
            jobs.id = ANY (job_ids || own)
            AND (jobs.created_ms <> now_ms OR (jobs.id = ANY (job_ids) AND (jobs.held LIKE '{"by":["jobs"%') IS NOT TRUE))
    ) OR EXISTS (
        SELECT FROM {schema}.edges
        WHERE
            edges.job_id = ANY (job_ids)
            AND NOT EXISTS (SELECT FROM {schema}.dropped WHERE dropped.id = edges.job_id)
    ) THEN
        RAISE 'only new jobs get edges' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN QUERY
    SELECT * FROM {schema}.add_edges(now_ms, inside, own, job_ids, numbers, on_ids, if_faileds);
END $$;
