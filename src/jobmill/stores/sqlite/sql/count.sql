-- How many jobs match, by queue and name.
-- The conditions' parameters. Rows: queue, name, number.
SELECT jobs.queue, jobs.name, count(*) FROM jobmill_jobs AS jobs WHERE {conditions} GROUP BY jobs.queue, jobs.name
