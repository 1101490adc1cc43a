-- A page of running jobs, in the order in which they were claimed. $1 limit, $2 how many jobs are examined; the other
-- parameters are those of the conditions. Rows as in find_own; `ended` is a line feed where other jobs may run.
-- No index says which jobs run, because a claim changes no index. Jobs are claimed from the start of an index range, so
-- running jobs are looked for there. After them, find_own finds those that run elsewhere.
WITH RECURSIVE {first_ranges},

page AS MATERIALIZED (
    SELECT jobs.id
    FROM ranges CROSS JOIN LATERAL (
        SELECT * FROM {live} WHERE {in_claim_range} ORDER BY jobs.due_ms, jobs.seq LIMIT ranges.examined
    ) AS jobs
    WHERE {live_where} AND {page_where} ORDER BY {by} LIMIT $1
)

SELECT
    CASE
        WHEN {continues} AND (SELECT count(*) FROM page) < $1 AND EXISTS (
            SELECT FROM ranges CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs WHERE {in_claim_range} OFFSET ranges.examined LIMIT 1
            ) AS behind
        ) THEN E'\n'
    END AS ended,
    jobs.*
FROM (SELECT) AS one LEFT JOIN (
    SELECT {read}, jobs.seq FROM page JOIN {live} ON jobs.id = page.id
) AS jobs ON true
ORDER BY {by}
