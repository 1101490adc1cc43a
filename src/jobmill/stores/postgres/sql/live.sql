-- Live jobs with the columns that final ones have besides, to be read as `jobs`. Put in place of {live}.
(
    SELECT
        *, CASE WHEN lease_until_ms > 0 THEN 'running' ELSE 'waiting' END AS state, NULL::bigint AS finished_ms
    FROM {schema}.jobs
) AS jobs
