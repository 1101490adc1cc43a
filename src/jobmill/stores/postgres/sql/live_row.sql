-- The same of a live job. Put in place of {live_row}.
jobs.id, jobs.name, jobs.queue, CASE WHEN jobs.lease_until_ms > 0 THEN 'running' ELSE 'waiting' END, jobs.errors,
jobs.options
