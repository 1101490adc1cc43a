-- Extend leases, under the guard. Returns the ids whose leases are lost.
-- A job that another transaction has locked (to settle or cancel it) is skipped: waiting for it would risk all other
-- leases. Its lease is lost once that transaction has committed, not before.
CREATE OR REPLACE FUNCTION {schema}.extend(at_ms bigint, ids text[], tokens text[], for_ms bigint)
RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
BEGIN
    WITH mine AS MATERIALIZED (
        SELECT jobs.id
        FROM unnest(ids, tokens) AS lease (id, token)
        JOIN {schema}.jobs ON jobs.id = lease.id AND jobs.token = lease.token AND jobs.lease_until_ms > now_ms
        FOR UPDATE OF jobs SKIP LOCKED
    )

    UPDATE {schema}.jobs SET lease_until_ms = now_ms + for_ms FROM mine WHERE jobs.id = mine.id;
    RETURN (
        SELECT coalesce(array_agg(lease.id), '{}')
        FROM unnest(ids, tokens) AS lease (id, token)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.jobs
            WHERE jobs.id = lease.id AND jobs.token = lease.token AND jobs.lease_until_ms > now_ms
        )
    );
END $$;
