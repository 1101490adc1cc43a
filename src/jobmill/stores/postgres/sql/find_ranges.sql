-- A page of jobs, merged from index ranges that have its order. $1 limit, $2 how many jobs are examined, shared by the
-- ranges, but of none fewer than a page; the other parameters are those of the conditions. {columns} is the order,
-- {ended} the same of `ended`, {by_range} the order within a range, where the priority is one. Rows as in find_own.
WITH RECURSIVE {ranges},

ranges AS MATERIALIZED (
    SELECT *, row_number() OVER () AS n, greatest($1, $2 / count(*) OVER ()) AS examined FROM known WHERE {of_known}
),

found AS MATERIALIZED (
    SELECT ranges.n, {found}
    FROM ranges CROSS JOIN LATERAL (
        SELECT jobs.*
        FROM (SELECT * FROM {from} WHERE {in_range} ORDER BY {by_range} LIMIT ranges.examined) AS jobs
        WHERE {where} ORDER BY {by_range} LIMIT $1
    ) AS jobs
),

ended AS MATERIALIZED (
    SELECT jobs.*
    FROM ranges CROSS JOIN LATERAL (
        SELECT {columns} FROM {from} WHERE {in_range} ORDER BY {by_range} OFFSET ranges.examined - 1 LIMIT 1
    ) AS jobs
    WHERE (SELECT count(*) FROM found WHERE found.n = ranges.n) < $1
    ORDER BY {by} LIMIT 1
),

page AS MATERIALIZED (
    SELECT jobs.id FROM found AS jobs
    WHERE ({columns}) {beyond} (SELECT {ended} FROM ended) IS NOT TRUE ORDER BY {by} LIMIT $1
)

SELECT nullif(concat_ws(',', {ended}), '') AS ended, jobs.*
FROM (SELECT) AS one LEFT JOIN ended ON true LEFT JOIN (
    SELECT {read}{seq} FROM page JOIN {from} ON jobs.id = page.id
) AS jobs ON true
ORDER BY {by}
