-- Finished runs of recurring jobs, for the statistics: such a job waits again, and so is no final job. A purge deletes
-- old ones, in the order in which they were inserted.
CREATE TABLE jobmill_runs (
    number INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_ms INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL
);
CREATE INDEX jobmill_runs_by_name ON jobmill_runs (queue, name, state, finished_ms, duration_ms);
