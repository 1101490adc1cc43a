-- Settle finished jobs, then claim due ones: one statement, one commit.
-- Rows: the claimed jobs in any order, and last a head with id NULL. Of the head: payload, the settled ids as a JSON
-- array (NULL: all); queue, what was released, and what became of lanes, as JSON (NULL: nothing); due_ms, the next due
-- time; created_ms, now; name, a snapshot of the server if the claim began at the start, or at a rewind; errors, the
-- number of pages of the index jobs_line that were read; extra, 'feed' where nothing was done, because a feed is on and
-- the caller does not add the events (`told`).
-- The positions of a claim (line_x, gap_x) hold if no rewind was committed since the snapshot `seen` (NULL: there are
-- no positions). Otherwise the claim begins at the first job that a rewind is for, in lines whose positions come after it.
-- `again_x`, `from_start` and `fills`: see exchange_lanes.
-- Measured at 100 a call with the default retention: 15.6 us of server time and 648 B of log a job.
CREATE OR REPLACE FUNCTION {schema}.exchange(
    at_ms bigint, told boolean,
    ids text[], tokens text[], states text[], errorses integer[], crasheses integer[], results text[],
    error_texts text[], tracebackses text[], ages bigint[], lasts integer[], runses integer[], failed_runses integer[],
    last_errors text[], revisions integer[], others json, settled_queues text[],
    queues text[], names text[], rooms integer[], n integer, lease_ms bigint, claim_worker text, claim_token text,
    not_these text[], seen text,
    line_queues text[], line_names text[], line_priorities integer[], line_dues bigint[], line_seqs bigint[],
    gap_queues text[], gap_names text[], gap_aboves integer[], gap_belows integer[],
    again_queues text[] DEFAULT '{}', again_lanes text[] DEFAULT '{}', from_start boolean DEFAULT true,
    fills boolean DEFAULT true
) RETURNS TABLE (
    id text, queue text, name text, payload text, priority integer, due_ms bigint, created_ms bigint, seq bigint,
    errors integer, crashes integer, claims integer, extra text, taken_over boolean
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    setting record;
    done text[] := '{}';
    began_at text;
    final record;
    back record;
    released json;
    freed_queues text[];
    freed_lanes text[];
    freed_priorities integer[];
    freed_joineds bigint[];
    freed_seqs bigint[];
    joined_queues text[];
    joined_lanes text[];
    look_queues text[] := again_queues;
    look_lanes text[] := again_lanes;
    lanes record;
    lanes_ms bigint;
    earliest record;
BEGIN
    -- A transaction that sets a running limit waits for all exchanges that do not know the limit: see queues.py.
    PERFORM pg_advisory_xact_lock_shared({lock});
    SELECT
        bool_or(known.feed) AS feed,
        bool_or(known.paused OR known.rate_count IS NOT NULL OR known.running_limit IS NOT NULL) AS limited,
        bool_or(known.has_lanes) AS has_lanes
    INTO setting
    FROM {schema}.queues AS known WHERE known.queue = ANY (settled_queues || queues);
    IF setting.feed AND NOT told THEN
        RETURN QUERY SELECT
            NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint,
            NULL::integer, NULL::integer, NULL::integer, 'feed', NULL::boolean;
        RETURN;
    END IF;
    IF setting.limited THEN
        PERFORM FROM {schema}.queues AS known WHERE known.queue = ANY (queues) ORDER BY known.queue FOR UPDATE;
    END IF;
    now_ms := coalesce(at_ms, {schema}.now_ms());
    IF cardinality(ids) > 0 THEN
        final := {schema}.settle_final(
            now_ms, ids, tokens, states, errorses, crasheses, results, error_texts, tracebackses, ages, lasts, runses,
            failed_runses, last_errors, revisions
        );
        done := final.done;
        freed_queues := final.freed_queues;
        freed_lanes := final.freed_lanes;
        freed_priorities := final.freed_priorities;
        freed_joineds := final.freed_joineds;
        freed_seqs := final.freed_seqs;
        IF final.awaited IS NOT NULL THEN
            SELECT
                json_build_object(
                    'awaited', CASE WHEN told THEN final.awaited END, 'queues', one.queues, 'has_more', one.has_more
                )
            INTO released
            FROM {schema}.release(
                now_ms, final.awaited,
                coalesce(final.awaited_states, array_fill('succeeded'::text, ARRAY[cardinality(final.awaited)])), NULL,
                {max_released}
            ) AS one;
        END IF;
    END IF;
    IF others IS NOT NULL THEN
        back := {schema}.settle_waiting(now_ms, others);
        done := done || back.done;
        joined_queues := back.freed_queues;
        joined_lanes := back.freed_lanes;
        freed_queues := freed_queues || back.freed_queues;
        freed_lanes := freed_lanes || back.freed_lanes;
        freed_priorities := freed_priorities || back.freed_priorities;
        freed_joineds := freed_joineds || back.freed_joineds;
        freed_seqs := freed_seqs || back.freed_seqs;
        look_queues := look_queues || back.passed_queues;
        look_lanes := look_lanes || back.passed_lanes;
    END IF;
    IF setting.has_lanes OR freed_lanes IS NOT NULL OR cardinality(look_lanes) > 0
        OR (released IS NOT NULL AND EXISTS (SELECT FROM {schema}.lane_marks))
    THEN
        lanes := {schema}.exchange_lanes(
            now_ms, queues, freed_queues, freed_lanes, freed_priorities, freed_joineds, freed_seqs,
            joined_queues, joined_lanes, look_queues, look_lanes, from_start, fills
        );
        lanes_ms := lanes.next_ms;
        IF released IS NOT NULL OR lanes.given > 0 OR lanes.again_lanes IS NOT NULL THEN
            released := json_build_object(
                'awaited', released -> 'awaited', 'queues', released -> 'queues',
                'has_more', coalesce((released ->> 'has_more')::boolean, false), 'given', lanes.given,
                'given_queues', lanes.given_queues, 'again_queues', lanes.again_queues, 'again_lanes', lanes.again_lanes
            );
        END IF;
    END IF;
    -- Unknown to a snapshot are the transactions that began later, and those that it has as running.
    SELECT pg_current_snapshot()::text INTO began_at
    WHERE
        seen IS NULL
        OR EXISTS (SELECT FROM {schema}.rewinds WHERE rewinds.xid >= pg_snapshot_xmax(seen::pg_snapshot))
        OR EXISTS (
            SELECT FROM pg_snapshot_xip(seen::pg_snapshot) AS one (xid) JOIN {schema}.rewinds ON rewinds.xid = one.xid
        );
    IF FOUND AND seen IS NOT NULL THEN
        SELECT one.due_ms, one.seq INTO earliest
        FROM (
            SELECT rewinds.due_ms, rewinds.seq FROM {schema}.rewinds
            WHERE rewinds.xid >= pg_snapshot_xmax(seen::pg_snapshot)
            UNION ALL
            SELECT rewinds.due_ms, rewinds.seq
            FROM pg_snapshot_xip(seen::pg_snapshot) AS other (xid) JOIN {schema}.rewinds ON rewinds.xid = other.xid
        ) AS one
        ORDER BY one.due_ms, one.seq LIMIT 1;
        FOR place IN 1..cardinality(line_dues) LOOP
            IF (earliest.due_ms, earliest.seq) < (line_dues[place], line_seqs[place]) THEN
                line_dues[place] := earliest.due_ms;
                line_seqs[place] := earliest.seq;
            END IF;
        END LOOP;
    END IF;
    RETURN QUERY
    SELECT
        one.id, coalesce(one.queue, released::text), coalesce(one.name, began_at),
        CASE
            WHEN one.id IS NOT NULL THEN one.payload
            WHEN cardinality(done) < cardinality(ids) + coalesce(json_array_length(others), 0) THEN to_json(done)::text
        END,
        one.priority, CASE WHEN one.id IS NULL THEN least(one.due_ms, lanes_ms) ELSE one.due_ms END, one.created_ms,
        one.seq, one.errors, one.crashes, one.claims,
        one.extra, one.taken_over
    FROM {schema}.claim(
        now_ms, coalesce(setting.limited, false), not_these, queues, names, rooms, n, lease_ms, claim_worker,
        claim_token, line_queues, line_names, line_priorities, line_dues, line_seqs,
        gap_queues, gap_names, gap_aboves, gap_belows
    ) AS one;
END $$;
