-- Hold jobs that wait again although jobs that they wait for have not ended. See held_again in core/changes.py.
CREATE OR REPLACE FUNCTION {schema}.hold_again(now_ms bigint, these text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    UPDATE {schema}.jobs SET
        held = CASE
            WHEN jobs.held IS NULL
                THEN CASE WHEN jobs.lane IS NULL THEN '{"by":["jobs"]' ELSE '{"by":["jobs","lane"]' END
                    || ',"due":{"at_ms":' || jobs.due_ms || '}}'
            ELSE '{"by":["jobs",' || substr(jobs.held, 8)
        END,
        due_ms = {never_ms}, doomed = NULL, updated_ms = now_ms
    WHERE
        jobs.id = ANY (these) AND jobs.lease_until_ms = 0 AND (jobs.held LIKE '{"by":["jobs"%') IS NOT TRUE
        AND EXISTS (SELECT FROM {schema}.edges WHERE edges.job_id = jobs.id AND {is_open})
        AND NOT EXISTS (
            SELECT FROM {schema}.edges
            WHERE
                edges.job_id = jobs.id AND edges.state IN ('failed', 'cancelled')
                AND edges.if_failed IN ('fail', 'now')
        );
END $$;

-- Final jobs live again: the jobs that still wait for them wait for their new end. See reopens in core/changes.py. Locks as
-- in `release`.
CREATE OR REPLACE FUNCTION {schema}.reopen(now_ms bigint, these text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    dependents text[];
BEGIN
    DELETE FROM {schema}.outbox WHERE outbox.id = ANY (these);
    SELECT array_agg(DISTINCT edge.job_id) INTO dependents
    FROM (
        SELECT edges.job_id FROM {schema}.edges
        WHERE edges.on_id = ANY (these) AND edges.state <> 'pending'
        ORDER BY edges.on_id, edges.job_id, edges.number FOR UPDATE
    ) AS edge;
    IF dependents IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.jobs WHERE jobs.id = ANY (dependents) ORDER BY jobs.id FOR NO KEY UPDATE;
    WITH reopened AS (
        UPDATE {schema}.edges SET state = 'pending', error = NULL
        FROM {schema}.jobs
        WHERE
            edges.on_id = ANY (these) AND edges.state <> 'pending'
            AND jobs.id = edges.job_id AND jobs.lease_until_ms = 0
            AND (
                jobs.held LIKE '{"by":["jobs"%'
                OR (jobs.doomed IS NOT NULL AND edges.state <> 'succeeded' AND edges.if_failed = 'fail')
            )
        RETURNING edges.job_id
    )

    SELECT array_agg(DISTINCT reopened.job_id) INTO dependents FROM reopened;
    PERFORM {schema}.hold_again(now_ms, dependents);
END $$;
