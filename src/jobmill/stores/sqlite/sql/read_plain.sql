-- The readable columns of a job whose JSON columns hold garbage.
-- ?1 seq. One row: a Job without them, as JSON.
SELECT json_object(
    'id', id, 'name', name, 'queue', queue, 'payload_json', NULL, 'state', state, 'priority', priority,
    'due_ms', due_ms, 'created_ms', created_ms, 'updated_ms', updated_ms, 'started_ms', started_ms,
    'finished_ms', finished_ms, 'errors', errors, 'crashes', crashes, 'claims', claims, 'worker', worker,
    'error', error, 'unique_key', unique_key, 'tenant', tenant
)
FROM jobmill_jobs WHERE seq = ?1
