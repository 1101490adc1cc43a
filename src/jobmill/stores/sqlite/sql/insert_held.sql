-- Insert jobs as insert.sql does, where some belong to a flow, wait for others or have a lane.
-- ?1 now; per job: as there, then flow, held, dependencies, lane, slot, joined_ms.
INSERT INTO jobmill_jobs (
    state, created_ms, updated_ms,
    id, queue, name, priority, due_ms, unique_key, tenant, options, recurrence, slot_ms, payload,
    flow, held, dependencies, lane, slot, joined_ms
)
SELECT 'waiting', ?1, ?1, fresh.* FROM (VALUES {rows of 17 from ?2}) AS fresh WHERE true
ON CONFLICT DO NOTHING
