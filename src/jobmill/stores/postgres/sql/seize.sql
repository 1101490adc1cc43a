-- Live jobs run under this lease, whoever held them before.
-- $1 ids, $2 now, $3 the end of the lease, $4 token, $5 worker.
WITH seized AS (
    UPDATE {schema}.jobs SET
        claims = claims + 1, updated_ms = $2, lease_until_ms = $3, started_ms = $2, token = $4, worker = $5
    WHERE id = ANY ($1::text[])
    RETURNING queue, id
)

INSERT INTO {schema}.running (queue, id)
SELECT seized.queue, seized.id FROM seized JOIN {schema}.queues USING (queue) WHERE queues.running_limit IS NOT NULL
ON CONFLICT DO NOTHING
