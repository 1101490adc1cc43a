-- A page of jobs that an index finds, but not in their order: there are few of them. $1 limit; the other parameters are
-- those of the conditions. Rows: jobs.
WITH few AS MATERIALIZED (
    SELECT jobs.id, jobs.priority, jobs.due_ms, jobs.seq, jobs.started_ms, jobs.finished_ms
    FROM {live} WHERE {live_where}
    UNION ALL
    SELECT jobs.id, jobs.priority, jobs.due_ms, 0, jobs.started_ms, jobs.finished_ms
    FROM {schema}.history AS jobs WHERE jobs.state = 'succeeded' AND {final_where}
    UNION ALL
    SELECT jobs.id, jobs.priority, jobs.due_ms, 0, jobs.started_ms, jobs.finished_ms
    FROM {schema}.history AS jobs WHERE jobs.state IN ('failed', 'cancelled') AND {final_where}
),

page AS MATERIALIZED (
    SELECT jobs.id FROM few AS jobs WHERE {page_where} ORDER BY {by} LIMIT $1
)

SELECT NULL AS ended, jobs.* FROM (
    SELECT {read}, jobs.seq FROM page JOIN {live} ON jobs.id = page.id
    UNION ALL
    SELECT {read}, 0 FROM page JOIN {schema}.history AS jobs ON jobs.id = page.id
) AS jobs
ORDER BY {by}
