-- What operators look at: attempts of jobs, held jobs, pauses, workers that announced themselves, what they counted, and
-- the audit log. The claim and the settlement of a plain job touch none of it.

-- Attempts that did not succeed. Jobs of older versions have their tracebacks instead.
ALTER TABLE jobmill_jobs ADD COLUMN attempts TEXT;

-- What holds a job. It counts only while due_ms is NEVER_MS, which keeps the job out of all claims.
ALTER TABLE jobmill_jobs ADD COLUMN held TEXT;
CREATE INDEX jobmill_held ON jobmill_jobs (seq) WHERE held IS NOT NULL;

-- Who paused a queue, and until when. A table of its own: older versions replace whole rows of jobmill_queues. When one
-- of them resumes a queue, the trigger ends what is known of its pause.
CREATE TABLE jobmill_pauses (queue TEXT PRIMARY KEY, pause TEXT) WITHOUT ROWID;
CREATE TRIGGER jobmill_resumed AFTER INSERT ON jobmill_queues WHEN new.paused = 0 BEGIN
    DELETE FROM jobmill_pauses WHERE queue = new.queue;
END;

-- The card is NULL once the worker has left: the number of its last announcement is remembered for a while.
CREATE TABLE jobmill_workers (
    id TEXT PRIMARY KEY,
    seen_ms INTEGER NOT NULL,
    announcement INTEGER NOT NULL,
    must_stop INTEGER NOT NULL DEFAULT 0,
    card TEXT
) WITHOUT ROWID;

CREATE TABLE jobmill_tallies (
    step_ms INTEGER NOT NULL,
    start_ms INTEGER NOT NULL,
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    tally TEXT NOT NULL,
    PRIMARY KEY (step_ms, start_ms, queue, name)
) WITHOUT ROWID;

-- The number is the order of the entries. A purge deletes old ones in that order, so their time needs no index.
CREATE TABLE jobmill_audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, at_ms INTEGER NOT NULL, entry TEXT NOT NULL
);

-- Recurring jobs, which are few among many. Claims and settlements do not change the indexed columns.
CREATE INDEX jobmill_recurring ON jobmill_jobs (seq) WHERE recurrence IS NOT NULL;

-- Jobs that have or had a unique key, for people who look for one. Other jobs are in no such index.
CREATE INDEX jobmill_keyed ON jobmill_jobs (unique_key) WHERE unique_key IS NOT NULL;
