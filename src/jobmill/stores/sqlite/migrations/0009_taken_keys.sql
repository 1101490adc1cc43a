-- Unique keys that stay taken until a time, whatever becomes of the job that took them.
CREATE TABLE jobmill_taken_keys (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    unique_key TEXT NOT NULL,
    id TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, name, unique_key)
) WITHOUT ROWID;
CREATE INDEX jobmill_taken_by ON jobmill_taken_keys (id);
