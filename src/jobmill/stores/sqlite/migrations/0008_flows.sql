-- Flows: jobs that wait for jobs, and what runs have recorded. A job of no flow has NULL in the new columns and no rows
-- in the new tables.

-- The flow of a job, the number of its edges, and the signal that it waits for while it waits.
ALTER TABLE jobmill_jobs ADD COLUMN flow TEXT;
ALTER TABLE jobmill_jobs ADD COLUMN dependencies INTEGER;
ALTER TABLE jobmill_jobs ADD COLUMN waits_for TEXT;
CREATE INDEX jobmill_flow ON jobmill_jobs (flow) WHERE flow IS NOT NULL;

-- An edge leads from a job to a job that it waits for or has waited for. When that job is removed, its seq may be given
-- to another job: on_seq is then NULL, and on_id has its id.
CREATE TABLE jobmill_edges (
    job_seq INTEGER NOT NULL,
    number INTEGER NOT NULL,
    on_seq INTEGER,
    on_id TEXT,
    if_failed TEXT NOT NULL,
    state TEXT NOT NULL,
    error TEXT,
    PRIMARY KEY (job_seq, number)
) WITHOUT ROWID;
CREATE INDEX jobmill_edges_on ON jobmill_edges (on_seq);

-- The edges that keep their jobs waiting.
CREATE INDEX jobmill_blocking ON jobmill_edges (job_seq, number)
    WHERE state = 'pending' OR (if_failed = 'wait' AND state <> 'succeeded');

-- Jobs that have ended and have more dependents than one transaction releases. next_seq: the job_seq of the first edge
-- that may still be pending.
CREATE TABLE jobmill_outbox (seq INTEGER PRIMARY KEY, next_seq INTEGER NOT NULL);

CREATE TABLE jobmill_steps (
    seq INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, error TEXT, result TEXT NOT NULL,
    PRIMARY KEY (seq, number)
);
CREATE TABLE jobmill_signals (seq INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (seq, name));

DROP TRIGGER jobmill_removed;
CREATE TRIGGER jobmill_removed AFTER DELETE ON jobmill_jobs BEGIN
    DELETE FROM jobmill_payloads WHERE seq = old.seq;
    DELETE FROM jobmill_logs WHERE seq = old.seq;
    DELETE FROM jobmill_steps WHERE seq = old.seq;
    DELETE FROM jobmill_signals WHERE seq = old.seq;
    DELETE FROM jobmill_outbox WHERE seq = old.seq;
    DELETE FROM jobmill_edges WHERE job_seq = old.seq;
    UPDATE jobmill_edges SET on_seq = NULL, on_id = old.id WHERE on_seq = old.seq;
END;
