-- Cancel live jobs, which the caller has locked: they move to the history, or leave the store (`leaving`), and the keys that
-- they have taken are free. `dues`: the due times of those that were held. Jobs that wait for them are released; returns the
-- queues of these.
CREATE OR REPLACE FUNCTION {schema}.cancel_jobs(
    now_ms bigint, these text[], dues bigint[], expireses bigint[], lasts integer[], leaving text[]
) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    queues text[];
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.jobs USING unnest(these, dues, expireses, lasts) AS patch (this, due, expires, last)
        WHERE jobs.id = patch.this RETURNING jobs.*, patch.due, patch.expires, patch.last
    ),

    marked AS (
        INSERT INTO {schema}.lane_marks (queue, lane) SELECT DISTINCT gone.queue, gone.lane FROM gone WHERE gone.slot = 0
    )

    INSERT INTO {schema}.history (
        {moved_as_it_is}, errors, crashes, error, result, attempts, runs, failed_runs, last_error, last_finished_ms,
        due_ms, state, updated_ms, finished_ms, expires_ms, keep_last
    )
    SELECT
        {moved_as_it_is}, errors, crashes, error, result, attempts, runs, failed_runs, last_error, last_finished_ms,
        coalesce(due, abs(due_ms)), 'cancelled', now_ms, now_ms, expires, last
    FROM gone;
    DELETE FROM {schema}.taken_keys WHERE taken_keys.id = ANY (these);
    IF cardinality(leaving) > 0 THEN
        queues := {schema}.remove(now_ms, leaving);
    END IF;
    RETURN queues || (SELECT one.queues FROM {schema}.release_dependents(now_ms, these) AS one);
END $$;
