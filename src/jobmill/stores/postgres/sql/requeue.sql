-- A final job waits again, with fresh budgets, unless its unique key has another live owner.
-- $1 id, $2 now, $3 due_ms. One value: the id of that owner, NULL when it was requeued.
WITH back AS (
    INSERT INTO {schema}.jobs (
        due_ms, created_ms, priority, claims, updated_ms, started_ms, worker, id, queue, name, payload, unique_key,
        tenant, options, log_lines, tracebacks, recurrence, revision, slot_ms, runs, failed_runs, last_error,
        last_finished_ms
    )
    SELECT
        $3, created_ms, priority, claims, $2, started_ms, worker, id, queue, name, payload, unique_key, tenant,
        options, log_lines, tracebacks, recurrence, revision, slot_ms, runs, failed_runs, last_error, last_finished_ms
    FROM {schema}.history WHERE history.id = $1
    ON CONFLICT DO NOTHING
    RETURNING id
),

gone AS (
    DELETE FROM {schema}.history USING back WHERE history.id = back.id
),

-- Where it was due before now, claims may have passed its place.
rewound AS MATERIALIZED (
    SELECT nextval('{schema}.rewinds') WHERE $3 < $2
)

SELECT CASE
    WHEN NOT EXISTS (SELECT FROM back) THEN coalesce(
        (
            SELECT owner.id
            FROM {schema}.history
            JOIN {schema}.jobs AS owner
                ON owner.queue = history.queue AND owner.name = history.name AND owner.unique_key IS NOT NULL
                AND {schema}.key_hash(owner.unique_key) = {schema}.key_hash(history.unique_key)
            WHERE history.id = $1
        ),
        '(settled meanwhile)'
    )
END
FROM (SELECT count(*) FROM rewound) AS counted
