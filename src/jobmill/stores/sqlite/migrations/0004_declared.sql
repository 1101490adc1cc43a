-- Recurring jobs that are declared by handlers: a worker looks for them when it starts. Claims and settlements do not
-- change the indexed columns, and so do not touch the index.
CREATE INDEX jobmill_declared ON jobmill_jobs (seq) WHERE instr(recurrence, '"declared":true') > 0;
