-- What runs used, where the application records usage. There is no index: Jobmill never reads the table, and an index
-- would cost time at every run. Rows stay until the user deletes them.
CREATE TABLE jobmill_usage (
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    duration_ms REAL NOT NULL,
    started_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    worker TEXT NOT NULL
);
