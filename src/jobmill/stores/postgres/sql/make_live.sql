-- A final job waits again, unless another live job has its unique key.
-- $1 a JSON array with one object of columns. One value: the id of that other job; NULL when the job was requeued.
WITH patch AS (
    SELECT * FROM json_populate_recordset(NULL::{schema}.jobs, $1::json)
),

back AS (
    INSERT INTO {schema}.jobs ({columns})
    SELECT {values} FROM {schema}.history JOIN patch ON patch.id = history.id
    ON CONFLICT DO NOTHING
    RETURNING id
),

gone AS (
    DELETE FROM {schema}.history USING back WHERE history.id = back.id
),

-- A job that was due before now may stand before the position of a claim cursor.
rewound AS (
    INSERT INTO {schema}.rewinds SELECT pg_current_xact_id() FROM patch WHERE patch.due_ms < patch.updated_ms
    ON CONFLICT DO NOTHING
)

SELECT CASE
    WHEN NOT EXISTS (SELECT FROM back) THEN coalesce(
        (
            SELECT owner.id
            FROM patch
            JOIN {schema}.history ON history.id = patch.id
            JOIN {schema}.jobs AS owner
                ON owner.queue = history.queue AND owner.name = history.name AND owner.unique_key IS NOT NULL
                AND {schema}.key_hash(owner.unique_key) = {schema}.key_hash(history.unique_key)
        ),
        '(settled meanwhile)'
    )
END
