-- How many jobs queues have in each state, at most `most` of each, and when the oldest waiting job became due.
-- `wanted` NULL: all queues that have jobs or settings.
-- A line is an index range of jobs_line: see claim.sql. With OFFSET 0 the planner reads line by line; without it, and
-- without statistics, it reads whole queues. Before its first job a line has the entries of jobs that have ended since the
-- last vacuum. They are passed once, to find that job. Measured with 200,000 of them: each time costs 1.9 ms.
-- No index says which jobs run, because a claim changes no index. Jobs are claimed from the start of a line, so running
-- jobs are first looked for there, until 100 jobs wait. The other due jobs are read if there are not too many.
CREATE OR REPLACE FUNCTION {schema}.depths(at_ms bigint, wanted text[], most integer)
RETURNS TABLE (
    queue text, due bigint, later bigint, held bigint, running bigint, succeeded bigint, failed bigint, cancelled bigint,
    oldest_due_ms bigint, limited_until_ms bigint, exact boolean
) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    this text;
    its_names text[];
    its_priorities integer[];
    its_starts bigint[];
    this_line record;
    this_job record;
    patience integer;
    bound bigint;
BEGIN
    FOR this IN
        WITH RECURSIVE live (queue) AS (
            SELECT min(jobs.queue) FROM {schema}.jobs WHERE wanted IS NULL
            UNION ALL
            SELECT (SELECT min(jobs.queue) FROM {schema}.jobs WHERE jobs.queue > live.queue)
            FROM live WHERE live.queue IS NOT NULL
        ),

        final (state, queue) AS (
            SELECT unnest(ARRAY['failed', 'cancelled']), '' COLLATE "C" WHERE wanted IS NULL
            UNION ALL
            SELECT final.state, (
                SELECT min(history.queue) FROM {schema}.history
                WHERE history.state <> 'succeeded' AND history.state = final.state AND history.queue > final.queue
            )
            FROM final WHERE final.queue IS NOT NULL
        ),

        successful (queue) AS (
            SELECT min(history.queue) FROM {schema}.history WHERE wanted IS NULL AND history.state = 'succeeded'
            UNION ALL
            SELECT (
                SELECT min(history.queue) FROM {schema}.history
                WHERE history.state = 'succeeded' AND history.queue > successful.queue
            )
            FROM successful WHERE successful.queue IS NOT NULL
        )

        SELECT known.queue
        FROM (
            SELECT unnest(wanted) COLLATE "C"
            UNION SELECT live.queue FROM live
            UNION SELECT nullif(final.queue, '') FROM final
            UNION SELECT successful.queue FROM successful
            UNION SELECT queues.queue FROM {schema}.queues WHERE wanted IS NULL
        ) AS known (queue)
        WHERE known.queue IS NOT NULL ORDER BY known.queue
    LOOP
        WITH RECURSIVE line (name, priority, start_ms) AS (
            (
                SELECT jobs.name, jobs.priority, jobs.due_ms FROM {schema}.jobs
                WHERE jobs.queue = this ORDER BY jobs.name, jobs.priority, jobs.due_ms LIMIT 1
            )
            UNION ALL
            SELECT following.name, following.priority, following.due_ms
            FROM line CROSS JOIN LATERAL (
                SELECT jobs.name, jobs.priority, jobs.due_ms FROM {schema}.jobs
                WHERE jobs.queue = this AND (jobs.name, jobs.priority) > (line.name, line.priority)
                ORDER BY jobs.name, jobs.priority, jobs.due_ms LIMIT 1
            ) AS following
        )

        SELECT array_agg(seen.name), array_agg(seen.priority), array_agg(seen.start_ms)
        INTO its_names, its_priorities, its_starts
        FROM (SELECT * FROM line LIMIT most) AS seen;

        running := 0;
        oldest_due_ms := NULL;
        FOR this_line IN
            SELECT * FROM unnest(its_names, its_priorities, its_starts) AS line (name, priority, start_ms)
        LOOP
            patience := 100;
            FOR this_job IN
                SELECT jobs.due_ms, jobs.lease_until_ms FROM {schema}.jobs
                WHERE
                    jobs.queue = this AND jobs.name = this_line.name AND jobs.priority = this_line.priority
                    AND jobs.due_ms BETWEEN this_line.start_ms AND now_ms
                ORDER BY jobs.due_ms, jobs.seq
            LOOP
                IF this_job.lease_until_ms > 0 THEN
                    running := running + 1;
                ELSE
                    oldest_due_ms := least(oldest_due_ms, this_job.due_ms);
                    patience := patience - 1;
                    EXIT WHEN patience = 0;
                END IF;
            END LOOP;
        END LOOP;
        bound := most + running;
        SELECT count(*) INTO due
        FROM (
            SELECT
            FROM unnest(its_names, its_priorities, its_starts) AS line (name, priority, start_ms)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs
                WHERE
                    jobs.queue = this AND jobs.name = line.name AND jobs.priority = line.priority
                    AND jobs.due_ms BETWEEN line.start_ms AND now_ms
                OFFSET 0
            ) AS ahead
            LIMIT bound
        ) AS seen;
        IF due < bound THEN
            SELECT count(*) INTO running
            FROM unnest(its_names, its_priorities, its_starts) AS line (name, priority, start_ms)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs
                WHERE
                    jobs.queue = this AND jobs.name = line.name AND jobs.priority = line.priority
                    AND jobs.due_ms BETWEEN line.start_ms AND now_ms AND jobs.lease_until_ms > 0
                OFFSET 0
            ) AS ahead;
        END IF;
        due := due - running;

        SELECT count(*) INTO later
        FROM (
            SELECT
            FROM unnest(its_names, its_priorities) AS line (name, priority)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs
                WHERE
                    jobs.queue = this AND jobs.name = line.name AND jobs.priority = line.priority
                    AND jobs.due_ms > now_ms AND jobs.due_ms < {never_ms}
                OFFSET 0
            ) AS ahead
            LIMIT most
        ) AS seen;
        SELECT count(*) INTO held
        FROM (
            SELECT
            FROM unnest(its_names, its_priorities) AS line (name, priority)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs
                WHERE
                    jobs.queue = this AND jobs.name = line.name AND jobs.priority = line.priority
                    AND jobs.due_ms >= {never_ms}
                OFFSET 0
            ) AS ahead
            LIMIT most
        ) AS seen;

        SELECT count(*) INTO succeeded
        FROM (SELECT FROM {schema}.history WHERE history.queue = this AND history.state = 'succeeded' LIMIT most) AS seen;
        SELECT count(*) INTO failed
        FROM (SELECT FROM {schema}.history WHERE history.queue = this AND history.state = 'failed' LIMIT most) AS seen;
        SELECT count(*) INTO cancelled
        FROM (SELECT FROM {schema}.history WHERE history.queue = this AND history.state = 'cancelled' LIMIT most) AS seen;

        SELECT known.window_ends_ms INTO limited_until_ms
        FROM {schema}.queues AS known
        WHERE known.queue = this AND known.window_used >= known.rate_count AND known.window_ends_ms > now_ms;

        queue := this;
        exact := greatest(due, later, held, running, succeeded, failed, cancelled) < most;
        running := least(running, most);
        RETURN NEXT;
    END LOOP;
END $$;
