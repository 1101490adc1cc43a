-- Insert jobs as insert.sql does, where some belong to a flow or wait for others.
-- ?1 now; per job: as there, then flow, held, dependencies.
INSERT INTO jobmill_jobs (
    state, created_ms, updated_ms,
    id, queue, name, priority, due_ms, unique_key, tenant, options, recurrence, slot_ms, payload,
    flow, held, dependencies
)
SELECT 'waiting', ?1, ?1, fresh.* FROM (VALUES {rows of 14 from ?2}) AS fresh WHERE true
ON CONFLICT DO NOTHING
