-- Prolong leases, under the guard. Returns the ids of those that are lost.
CREATE OR REPLACE FUNCTION {schema}.extend(at_ms bigint, ids text[], tokens text[], for_ms bigint)
RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    now_ms bigint := coalesce(at_ms, {schema}.now_ms());
    held text[];
BEGIN
    -- In the order of ids, as every verb that waits for several jobs, so that no two wait for each other.
    WITH mine AS MATERIALIZED (
        SELECT jobs.id
        FROM unnest(ids, tokens) AS lease (id, token)
        JOIN {schema}.jobs ON jobs.id = lease.id AND jobs.token = lease.token AND jobs.lease_until_ms > now_ms
        ORDER BY jobs.id FOR UPDATE OF jobs
    ),

    extended AS (
        UPDATE {schema}.jobs SET lease_until_ms = now_ms + for_ms FROM mine WHERE jobs.id = mine.id RETURNING jobs.id
    )

    SELECT coalesce(array_agg(extended.id), '{}') INTO held FROM extended;
    RETURN (
        SELECT coalesce(array_agg(lease.id), '{}') FROM unnest(ids) AS lease (id)
        WHERE lease.id NOT IN (SELECT unnest(held))
    );
END $$;
