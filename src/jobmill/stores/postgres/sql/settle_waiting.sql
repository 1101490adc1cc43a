-- Settle jobs that wait again, under the guard. NULL leaves attempts, due time, slot and runs unchanged. A job that waits
-- for a signal which it has got is due at once. A job that was seized while it waited for others is held again.
-- others: a JSON array with an object for each settlement. Returns the ids that were settled, and where those stood that have
-- given up slots of lanes. `keeps`: whether a job with a lane keeps its slot: 'always', 'strict' (if its lane is strict) or
-- 'never'. `passed_x`: lanes in which a job that keeps its slot must perhaps give it to a more urgent one, or has one
-- more than the lane may have. A finished run of a recurring job is noted for the statistics. Workers of older versions send tracebacks instead of attempts.
CREATE OR REPLACE FUNCTION {schema}.settle_waiting(
    now_ms bigint, others json, OUT done text[], OUT freed_queues text[], OUT freed_lanes text[],
    OUT freed_priorities integer[], OUT freed_joineds bigint[], OUT freed_seqs bigint[], OUT passed_queues text[],
    OUT passed_lanes text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    back boolean;
    dependents text[];
    waits boolean;
    with_lanes text[];
    keepses text[];
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT one.*, coalesce(one.due_ms, now_ms + one.delay_ms) AS due
        FROM json_to_recordset(others) AS one (
            id text, token text, errors integer, crashes integer, error text, result text, attempts text,
            tracebacks text, due_ms bigint, delay_ms bigint, slot_ms bigint, runs integer, failed_runs integer, last_error text,
            revision integer, run_state text, waits_for text, keeps text
        )
    ),

    settled AS (
        UPDATE {schema}.jobs SET
            lease_until_ms = 0, token = '', updated_ms = now_ms, errors = ended.errors, crashes = ended.crashes,
            error = ended.error, result = nullif(ended.result, 'null'), progress = NULL,
            attempts = coalesce(ended.attempts, ended.tracebacks, jobs.attempts), held = NULL,
            waits_for = ended.waits_for, due_ms = coalesce(ended.due, {shown_due_ms}),
            slot_ms = coalesce(ended.slot_ms, jobs.slot_ms),
            runs = coalesce(ended.runs, jobs.runs),
            failed_runs = coalesce(ended.failed_runs, jobs.failed_runs),
            last_error = CASE WHEN ended.runs IS NULL THEN jobs.last_error ELSE ended.last_error END,
            last_finished_ms = CASE WHEN ended.runs IS NULL THEN jobs.last_finished_ms ELSE now_ms END
        FROM ended
        WHERE
            jobs.id = ended.id AND jobs.token = ended.token AND jobs.lease_until_ms > now_ms
            AND (ended.revision IS NULL OR ended.revision = coalesce(jobs.revision, 0))
        RETURNING
            jobs.id, ended.due, jobs.queue, jobs.name, jobs.started_ms, ended.run_state, jobs.waits_for,
            jobs.dependencies, jobs.lane, ended.keeps
    ),

    noted AS (
        INSERT INTO {schema}.runs (finished_ms, duration_ms, queue, name, state)
        SELECT now_ms, now_ms - settled.started_ms, settled.queue, settled.name, settled.run_state
        FROM settled WHERE settled.run_state IS NOT NULL
    )

    SELECT
        coalesce(array_agg(settled.id), '{}'), bool_or(settled.due IS NULL OR settled.due < now_ms),
        bool_or(settled.waits_for IS NOT NULL),
        array_agg(settled.id) FILTER (WHERE settled.dependencies IS NOT NULL),
        array_agg(settled.id) FILTER (WHERE settled.lane IS NOT NULL),
        array_agg(settled.keeps) FILTER (WHERE settled.lane IS NOT NULL)
    INTO done, back, waits, dependents, with_lanes, keepses FROM settled;
    -- Apart: in the statement above, the same cost every retry 3 of 20 us.
    IF with_lanes IS NOT NULL THEN
        WITH place AS MATERIALIZED (
            SELECT jobs.ctid, jobs.joined_ms AS before_ms, greatest(now_ms, jobs.due_ms) AS joined_ms
            FROM unnest(with_lanes, keepses) AS ended (id, keeps) JOIN {schema}.jobs ON jobs.id = ended.id
            WHERE NOT {keeps_slot}
        ),

        freed AS (
            UPDATE {schema}.jobs SET
                held = '{"by":["lane"],"due":{"at_ms":' || place.joined_ms || '}}', due_ms = {never_ms},
                slot = CASE WHEN place.joined_ms <= now_ms THEN -1 ELSE -2 END, joined_ms = place.joined_ms
            FROM place WHERE jobs.ctid = place.ctid
            RETURNING jobs.queue, jobs.lane, jobs.priority, place.before_ms, jobs.seq
        )

        SELECT
            array_agg(freed.queue), array_agg(freed.lane), array_agg(freed.priority), array_agg(freed.before_ms),
            array_agg(freed.seq)
        INTO freed_queues, freed_lanes, freed_priorities, freed_joineds, freed_seqs FROM freed;
        SELECT array_agg(jobs.queue), array_agg(jobs.lane) INTO passed_queues, passed_lanes
        FROM unnest(with_lanes) AS ended (id) JOIN {schema}.jobs ON jobs.id = ended.id
        WHERE
            jobs.slot = 0 AND (
                (
                    jobs.priority > 0 AND EXISTS (
                        SELECT FROM (
                            SELECT FROM {schema}.jobs AS urgent
                            WHERE
                                urgent.queue = jobs.queue AND urgent.lane = jobs.lane AND urgent.slot = -1
                                AND urgent.priority < jobs.priority
                            ORDER BY urgent.priority, urgent.joined_ms, urgent.seq LIMIT 1
                        ) AS first
                    )
                )
                OR EXISTS (
                    SELECT FROM {schema}.lanes AS own
                    WHERE
                        own.queue = jobs.queue AND own.lane = jobs.lane
                        AND (own.pause IS NOT NULL OR own.review_ms IS NOT NULL)
                )
            );
    END IF;
    IF dependents IS NOT NULL THEN
        PERFORM {schema}.hold_again(now_ms, dependents);
    END IF;
    IF waits THEN
        UPDATE {schema}.jobs SET
            due_ms = CASE WHEN jobs.slot < 0 THEN jobs.due_ms ELSE now_ms END,
            held = CASE WHEN jobs.slot < 0 THEN '{"by":["lane"],"due":{"at_ms":' || now_ms || '}}' END,
            slot = CASE WHEN jobs.slot < 0 THEN -1 ELSE jobs.slot END,
            joined_ms = CASE WHEN jobs.slot < 0 THEN now_ms ELSE jobs.joined_ms END
        WHERE
            jobs.id = ANY (done) AND (jobs.held IS NULL OR jobs.slot < 0)
            AND EXISTS (SELECT FROM {schema}.signals WHERE signals.id = jobs.id AND signals.name = jobs.waits_for);
        back := back OR FOUND;
    END IF;
    IF back THEN
        INSERT INTO {schema}.rewinds DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
END $$;
