-- Another priority.
-- $1 ids, $2 now, $3 priority. Claims may have passed the new place.
WITH changed AS (
    UPDATE {schema}.jobs SET updated_ms = $2, priority = $3 WHERE id = ANY ($1::text[]) RETURNING id
)

SELECT nextval('{schema}.rewinds') FROM changed LIMIT 1
