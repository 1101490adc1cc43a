-- The columns of a job to look at: of the table jobs, and of history under the same name. Put in place of {read}.
jobs.id, jobs.name, jobs.queue, jobs.state, jobs.priority, jobs.due_ms, jobs.created_ms, jobs.updated_ms,
jobs.started_ms, jobs.finished_ms, jobs.errors, jobs.crashes, jobs.claims, jobs.worker, jobs.payload, {extra} AS extra,
json_build_object('unique_key', jobs.unique_key, 'tenant', jobs.tenant, 'error', jobs.error)::text AS plain
