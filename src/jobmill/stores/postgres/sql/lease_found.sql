-- Lease the jobs that were found: a part of claim.sql. `extra` is a long expression, which each call prepares anew, so it
-- stands here only once.
UPDATE {schema}.jobs SET
    claims = jobs.claims + 1,
    crashes = jobs.crashes + (found.taken_over AND NOT found.uncounted)::integer,
    unstarted = CASE WHEN found.taken_over AND found.uncounted THEN 1 ELSE jobs.unstarted END,
    updated_ms = now_ms, lease_until_ms = now_ms + lease_ms, started_ms = now_ms, token = claim_token,
    worker = claim_worker
FROM found WHERE jobs.ctid = found.place
RETURNING
    jobs.id, jobs.queue, jobs.name, jobs.payload, jobs.priority, jobs.due_ms, jobs.created_ms, jobs.seq,
    jobs.errors, jobs.crashes, jobs.claims,
    CASE
        WHEN found.taken_over
            THEN '"recovered_from":' || to_json(found.worker)::text
                || ',"uncounted":' || found.uncounted::text || ','
        ELSE ''
    END || coalesce({extra}, CASE WHEN found.taken_over THEN '"runs":0}' END) AS extra,
    found.taken_over
