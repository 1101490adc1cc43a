-- Claim up to n due jobs, from the queues in their order, within the room of each name.
--
-- A line is an index range of jobs_line: all waiting jobs of one queue, name and priority. Known lines are given with
-- the position of the last job that was claimed, so that nothing before it is read. Entries of jobs that were settled
-- since the last vacuum are still in the index, and while an old snapshot is held, each of them costs a visit to the
-- table. New lines are searched in the gaps between the known priorities of a queue and name.
-- Measured with 60,000 jobs settled since the last vacuum, settle + claim of 100: from the start 16.5 us a job, growing
-- with their number; from the last position 13 us, constant.
-- Instructions of the server for settle + claim, a job, at 25 a call: 153,500 with the rows of `running` written in the same
-- statement for every queue and `extra` twice in it; 151,800 with `extra` once; 148,800 with a statement of its own for
-- queues without a running limit.
CREATE OR REPLACE FUNCTION {schema}.claim(
    now_ms bigint, limited boolean, not_these text[], queues text[], names text[], rooms integer[], n integer,
    lease_ms bigint, claim_worker text, claim_token text,
    line_queues text[], line_names text[], line_priorities integer[], line_dues bigint[], line_seqs bigint[],
    gap_queues text[], gap_names text[], gap_aboves integer[], gap_belows integer[]
) RETURNS TABLE (
    id text, queue text, name text, payload text, priority integer, due_ms bigint, created_ms bigint, seq bigint,
    errors integer, crashes integer, claims integer, extra text, taken_over boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    open_n integer := n;
    this_queue text;
    setting {schema}.queues%ROWTYPE;
    held integer;
    most integer;
    got integer;
    -- The lines of this queue, and how many jobs to take of each.
    its_names text[];
    its_priorities integer[];
    its_rooms integer[];
    its_dues bigint[];
    its_seqs bigint[];
    takes integer[];
    -- Where the jobs are that were found, and of those that another worker has lost, what to say, by id.
    places tid[];
    lost jsonb;
    is_new boolean;
    due bigint;
    -- The first end of a lease that holds now.
    first_end bigint;
    -- When the pause of this queue is over.
    resumes_ms bigint;
    next_ms bigint;
    pages bigint := pg_stat_get_xact_blocks_fetched('{schema}.jobs_line'::regclass);
BEGIN
    FOREACH this_queue IN ARRAY queues LOOP
        most := open_n;
        IF limited THEN
            SELECT * INTO setting FROM {schema}.queues AS known WHERE known.queue = this_queue;
            resumes_ms := CASE WHEN setting.paused THEN (setting.pause::json ->> 'until_ms')::bigint END;
            CONTINUE WHEN setting.paused AND resumes_ms IS NULL;
            IF resumes_ms > now_ms THEN
                most := 0;
            END IF;
            IF setting.running_limit IS NOT NULL THEN
                DELETE FROM {schema}.running
                WHERE running.queue = this_queue AND NOT EXISTS (
                    SELECT FROM {schema}.jobs WHERE jobs.id = running.id AND jobs.lease_until_ms > 0
                );
                -- An ended lease does not count: claiming that job again does not add a running job.
                SELECT count(*) INTO held
                FROM {schema}.running JOIN {schema}.jobs ON jobs.id = running.id
                WHERE running.queue = this_queue AND jobs.lease_until_ms > now_ms;
                most := least(most, greatest(0, setting.running_limit - held));
            END IF;
            IF setting.rate_count IS NOT NULL THEN
                IF now_ms >= setting.window_ends_ms THEN
                    setting.window_used := 0;
                END IF;
                most := least(most, greatest(0, setting.rate_count - setting.window_used));
            END IF;
        END IF;

        is_new := EXISTS (
            SELECT FROM unnest(gap_queues, gap_names, gap_aboves, gap_belows) AS gap (queue, name, above, below)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs
                WHERE
                    jobs.queue = gap.queue AND jobs.name = gap.name
                    AND jobs.priority > gap.above AND jobs.priority < gap.below
                LIMIT 1
            ) AS head
            WHERE gap.queue = this_queue
        );
        IF is_new OR cardinality(queues) > 1 OR cardinality(line_queues) > 1 THEN
            WITH RECURSIVE
            gap AS (
                SELECT one.name, one.above, one.below
                FROM unnest(gap_queues, gap_names, gap_aboves, gap_belows) AS one (queue, name, above, below)
                WHERE one.queue = this_queue
            ),

            fresh (name, priority, below) AS (
                SELECT gap.name, head.priority, gap.below
                FROM gap CROSS JOIN LATERAL (
                    SELECT jobs.priority FROM {schema}.jobs
                    WHERE
                        jobs.queue = this_queue AND jobs.name = gap.name
                        AND jobs.priority > gap.above AND jobs.priority < gap.below
                    ORDER BY jobs.queue, jobs.name, jobs.priority LIMIT 1
                ) AS head
                UNION ALL
                SELECT fresh.name, head.priority, fresh.below
                FROM fresh CROSS JOIN LATERAL (
                    SELECT jobs.priority FROM {schema}.jobs
                    WHERE
                        jobs.queue = this_queue AND jobs.name = fresh.name
                        AND jobs.priority > fresh.priority AND jobs.priority < fresh.below
                    ORDER BY jobs.queue, jobs.name, jobs.priority LIMIT 1
                ) AS head
            ),

            line (name, priority, due_ms, seq) AS (
                SELECT fresh.name, fresh.priority, -9223372036854775808, 0 FROM fresh
                UNION ALL
                SELECT one.name, one.priority, one.due_ms, one.seq
                FROM unnest(line_queues, line_names, line_priorities, line_dues, line_seqs)
                    AS one (queue, name, priority, due_ms, seq)
                WHERE one.queue = this_queue
            )

            SELECT
                array_agg(line.name), array_agg(line.priority), array_agg(lane.room), array_agg(line.due_ms),
                array_agg(line.seq)
            INTO its_names, its_priorities, its_rooms, its_dues, its_seqs
            FROM line JOIN unnest(names, rooms) AS lane (name, room) ON lane.name = line.name;
        ELSIF line_queues[1] = this_queue AND line_names[1] = ANY (names) THEN
            -- The same without the query, which takes longer to start than to run: there is one line, and it is known.
            its_names := line_names;
            its_priorities := line_priorities;
            its_rooms := ARRAY[rooms[array_position(names, line_names[1])]];
            its_dues := line_dues;
            its_seqs := line_seqs;
        ELSE
            its_names := NULL;
        END IF;
        CONTINUE WHEN its_names IS NULL;

        IF cardinality(its_names) = 1 AND cardinality(queues) = 1 THEN
            takes := ARRAY[least(its_rooms[1], most)];
        ELSE
            -- How many of the first `most` jobs belong to each line: only these jobs are locked.
            SELECT array_agg(coalesce(share.jobs, 0) ORDER BY line.n) INTO takes
            FROM unnest(its_names) WITH ORDINALITY AS line (name, n)
            LEFT JOIN (
                SELECT first.n, count(*)::integer AS jobs
                FROM (
                    SELECT candidate.n
                    FROM (
                        SELECT
                            line.n, line.room, line.priority, ahead.due_ms, ahead.seq,
                            row_number() OVER (PARTITION BY line.name ORDER BY line.priority, ahead.due_ms, ahead.seq)
                            AS nth
                        FROM unnest(its_names, its_priorities, its_rooms, its_dues, its_seqs) WITH ORDINALITY
                            AS line (name, priority, room, due_ms, seq, n)
                        CROSS JOIN LATERAL (
                            SELECT jobs.due_ms, jobs.seq FROM {schema}.jobs
                            WHERE
                                jobs.queue = this_queue AND jobs.name = line.name AND jobs.priority = line.priority
                                AND jobs.due_ms <= now_ms AND (jobs.due_ms, jobs.seq) >= (line.due_ms, line.seq)
                                AND jobs.lease_until_ms <= now_ms AND jobs.id <> ALL (not_these)
                            ORDER BY jobs.due_ms, jobs.seq LIMIT least(line.room, most)
                        ) AS ahead
                    ) AS candidate
                    WHERE candidate.nth <= candidate.room
                    ORDER BY candidate.priority, candidate.due_ms, candidate.seq LIMIT most
                ) AS first
                GROUP BY first.n
            ) AS share ON share.n = line.n;
        END IF;

        {due_jobs};
        IF places IS NULL THEN
            got := 0;
        ELSIF limited AND setting.running_limit IS NOT NULL THEN
            RETURN QUERY
            WITH taken AS ({lease_found}), noted AS (
                INSERT INTO {schema}.running (queue, id) SELECT this_queue, taken.id FROM taken ON CONFLICT DO NOTHING
            )

            SELECT * FROM taken;
            GET DIAGNOSTICS got = ROW_COUNT;
        ELSE
            RETURN QUERY {lease_found};
            GET DIAGNOSTICS got = ROW_COUNT;
        END IF;
        open_n := open_n - got;
        IF limited AND setting.rate_count IS NOT NULL AND got > 0 THEN
            UPDATE {schema}.queues AS known SET
                window_ends_ms = CASE
                    WHEN now_ms >= known.window_ends_ms THEN now_ms + known.rate_per_ms
                    ELSE known.window_ends_ms
                END,
                window_used = setting.window_used + got
            WHERE known.queue = this_queue;
        END IF;
        IF cardinality(queues) > 1 THEN
            SELECT array_agg(lane.room - coalesce(used.jobs, 0) ORDER BY lane.n) INTO rooms
            FROM unnest(names, rooms) WITH ORDINALITY AS lane (name, room, n)
            LEFT JOIN (
                SELECT line.name, sum(line.take)::integer AS jobs
                FROM unnest(its_names, takes) AS line (name, take) GROUP BY line.name
            ) AS used ON used.name = lane.name;
        END IF;

        -- When the next job that waits or runs now becomes claimable.
        IF open_n = 0 THEN
            due := now_ms;
        ELSE
            SELECT min(ahead.due_ms) INTO due
            FROM unnest(its_names, its_priorities, its_dues, its_seqs) AS line (name, priority, due_ms, seq)
            CROSS JOIN LATERAL (
                SELECT jobs.due_ms FROM {schema}.jobs
                WHERE
                    jobs.queue = this_queue AND jobs.name = line.name AND jobs.priority = line.priority
                    AND (jobs.due_ms, jobs.seq) >= (line.due_ms, line.seq) AND jobs.lease_until_ms = 0
                    -- Each job that a lane has held leaves an entry there.
                    AND jobs.due_ms < {never_ms}
                ORDER BY jobs.due_ms, jobs.seq LIMIT 1
            ) AS ahead;
        END IF;
        first_end := NULL;
        IF limited AND setting.running_limit IS NOT NULL THEN
            SELECT count(*), min(jobs.lease_until_ms) FILTER (
                WHERE jobs.lease_until_ms > now_ms AND jobs.name = ANY (names)
            )
            INTO held, first_end
            FROM {schema}.running JOIN {schema}.jobs ON jobs.id = running.id
            WHERE running.queue = this_queue AND jobs.lease_until_ms > 0;
            IF held >= setting.running_limit THEN
                due := NULL;
            END IF;
        ELSIF got = 0 AND (due IS NULL OR due > now_ms) THEN
            -- No job that waits is due, so each job before now runs: this reads what the search above has read.
            SELECT min(ahead.lease_until_ms) INTO first_end
            FROM unnest(its_names, its_priorities, its_dues, its_seqs) AS line (name, priority, due_ms, seq)
            CROSS JOIN LATERAL (
                SELECT jobs.lease_until_ms FROM {schema}.jobs
                WHERE
                    jobs.queue = this_queue AND jobs.name = line.name AND jobs.priority = line.priority
                    AND jobs.due_ms <= now_ms AND (jobs.due_ms, jobs.seq) >= (line.due_ms, line.seq)
                    AND jobs.lease_until_ms > now_ms
            ) AS ahead;
        END IF;
        IF got = 0 THEN
            due := least(due, first_end);
        END IF;
        IF due < resumes_ms THEN
            due := resumes_ms;
        END IF;
        IF limited AND setting.rate_count IS NOT NULL AND setting.window_used + got >= setting.rate_count THEN
            SELECT greatest(due, known.window_ends_ms) INTO due
            FROM {schema}.queues AS known WHERE known.queue = this_queue AND due IS NOT NULL;
        END IF;
        next_ms := least(next_ms, due);
        EXIT WHEN open_n = 0;
    END LOOP;
    RETURN QUERY SELECT
        NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, next_ms, now_ms, NULL::bigint,
        (pg_stat_get_xact_blocks_fetched('{schema}.jobs_line'::regclass) - pages)::integer,
        NULL::integer, NULL::integer, NULL::text, NULL::boolean;
END $$;
