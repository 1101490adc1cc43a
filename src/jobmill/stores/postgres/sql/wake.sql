-- Notify sleeping workers that there may be work in these queues; nothing is sent where no worker sleeps.
-- They receive it when the transaction commits.
CREATE OR REPLACE FUNCTION {schema}.wake(queues text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = on AS $$
DECLARE
    now_ms bigint := {schema}.now_ms();
BEGIN
    PERFORM pg_notify('{channel}', asleep.queue)
    FROM (
        SELECT DISTINCT rung.queue
        FROM unnest(wake.queues) AS rung (queue)
        JOIN {schema}.sleepers ON sleepers.until_ms > now_ms AND rung.queue = ANY (sleepers.queues)
    ) AS asleep;
END $$;
