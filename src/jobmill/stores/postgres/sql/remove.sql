-- Take jobs away that are not running, with their log lines.
-- $1 ids.
WITH live AS (
    DELETE FROM {schema}.jobs WHERE id = ANY ($1::text[]) RETURNING id, log_lines
),

final AS (
    DELETE FROM {schema}.history WHERE id = ANY ($1::text[]) RETURNING id, log_lines
)

DELETE FROM {schema}.logs
WHERE id IN (
    SELECT gone.id FROM (SELECT * FROM live UNION ALL SELECT * FROM final) AS gone WHERE gone.log_lines IS NOT NULL
)
