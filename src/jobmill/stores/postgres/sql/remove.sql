-- Final jobs to which no edges lead any more: their own retention applies again.
CREATE OR REPLACE FUNCTION {schema}.unpin(these text[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    -- The look is a statement of its own: an edge may be added until the rows are locked.
    PERFORM FROM {schema}.history WHERE history.id = ANY (these) ORDER BY history.id FOR UPDATE;
    UPDATE {schema}.history SET
        has_dependents = NULL, pinned_expires_ms = NULL, pinned_keep_last = NULL,
        -- A job that is not kept would have been removed at once.
        expires_ms = CASE WHEN pinned_keep_last = 0 THEN finished_ms ELSE pinned_expires_ms END,
        keep_last = nullif(pinned_keep_last, 0)
    WHERE
        history.id = ANY (these) AND history.has_dependents
        AND NOT EXISTS (SELECT FROM {schema}.edges WHERE edges.on_id = history.id);
END $$;

-- Delete edges of jobs that have left the store, at most `most` (NULL: all); how many. With `most`, it passes over edges that
-- somebody sets now: their order of locks is not always this one, and the next call finds them.
CREATE OR REPLACE FUNCTION {schema}.drop_edges(these text[], most bigint) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    number bigint;
    freed text[];
BEGIN
    IF most IS NULL THEN
        PERFORM FROM {schema}.edges
        WHERE edges.job_id = ANY (these) ORDER BY edges.on_id, edges.job_id, edges.number FOR UPDATE;
    END IF;
    WITH chosen AS MATERIALIZED (
        SELECT edges.ctid AS place FROM {schema}.edges
        WHERE edges.job_id = ANY (these) ORDER BY edges.on_id, edges.job_id, edges.number LIMIT most
        FOR UPDATE SKIP LOCKED
    ),

    gone AS (
        DELETE FROM {schema}.edges USING chosen WHERE edges.ctid = chosen.place RETURNING edges.on_id
    )

    SELECT count(*), array_agg(DISTINCT gone.on_id) INTO number, freed FROM gone;
    DELETE FROM {schema}.dropped
    WHERE dropped.id = ANY (these) AND NOT EXISTS (SELECT FROM {schema}.edges WHERE edges.job_id = dropped.id);
    PERFORM {schema}.unpin(freed);
    RETURN number;
END $$;

-- Delete what belongs to jobs that leave the store. Their edges are deleted by a purge: here, they would be locked after
-- the rows of the jobs, and settlements lock them before.
CREATE OR REPLACE FUNCTION {schema}.forget(these text[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM {schema}.logs WHERE logs.id = ANY (these);
    DELETE FROM {schema}.steps WHERE steps.id = ANY (these);
    DELETE FROM {schema}.signals WHERE signals.id = ANY (these);
    INSERT INTO {schema}.dropped (id)
    SELECT DISTINCT edges.job_id FROM {schema}.edges WHERE edges.job_id = ANY (these) ON CONFLICT DO NOTHING;
END $$;

-- Delete jobs. The jobs that wait for one of them are released: for them, a live job was cancelled. Returns the queues of
-- released jobs.
CREATE OR REPLACE FUNCTION {schema}.remove(now_ms bigint, these text[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    awaited text[];
    leftover text[];
    queues text[];
    others text[];
BEGIN
    SELECT array_agg(history.id) INTO awaited
    FROM {schema}.history WHERE history.id = ANY (these) AND history.has_dependents;
    IF awaited IS NOT NULL THEN
        SELECT one.queues INTO queues FROM {schema}.release(now_ms, awaited, '{}', NULL, NULL) AS one;
        DELETE FROM {schema}.outbox WHERE outbox.id = ANY (awaited);
    END IF;
    WITH live AS (
        DELETE FROM {schema}.jobs WHERE jobs.id = ANY (these)
        RETURNING
            jobs.id, jobs.log_lines, jobs.has_records, jobs.dependencies, jobs.has_dependents, jobs.queue, jobs.lane,
            jobs.slot
    ),

    marked AS (
        INSERT INTO {schema}.lane_marks (queue, lane) SELECT DISTINCT live.queue, live.lane FROM live WHERE live.slot = 0
    ),

    final AS (
        DELETE FROM {schema}.history WHERE history.id = ANY (these)
        RETURNING history.id, history.log_lines, history.has_records, history.dependencies
    ),

    gone AS (
        SELECT live.id, live.log_lines, live.has_records, live.dependencies FROM live
        UNION ALL
        SELECT * FROM final
    )

    SELECT
        array_agg(gone.id) FILTER (WHERE NOT (gone.log_lines, gone.has_records, gone.dependencies) IS NULL),
        (SELECT array_agg(live.id) FROM live WHERE live.has_dependents)
    INTO leftover, awaited FROM gone;
    IF leftover IS NOT NULL THEN
        PERFORM {schema}.forget(leftover);
    END IF;
    IF awaited IS NOT NULL THEN
        SELECT one.queues INTO others FROM {schema}.release(now_ms, awaited, '{}', NULL, NULL) AS one;
    END IF;
    RETURN queues || others;
END $$;
