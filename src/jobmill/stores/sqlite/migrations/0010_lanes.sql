-- Lanes: jobs of one queue with the same key share limits. A job without a lane has NULL in the new columns and is in no new
-- index.

-- slot: 0 has a slot, -1 is held by its lane and ready, -2 is held by its lane and due later, NULL is held by others as
-- well. It counts only while the job is live. joined_ms: when the job joined its lane, or when it may run; it stays while
-- the job has a slot, so that the job can be put back where it stood.
ALTER TABLE jobmill_jobs ADD COLUMN lane TEXT;
ALTER TABLE jobmill_jobs ADD COLUMN slot INTEGER;
ALTER TABLE jobmill_jobs ADD COLUMN joined_ms INTEGER;

-- The order of each lane, and the number of its slots. A process of an older version that ends a job frees the slot.
CREATE INDEX jobmill_in_lane ON jobmill_jobs (queue, lane, slot, state, priority, joined_ms)
    WHERE lane IS NOT NULL AND (state = 'waiting' OR state = 'running');
CREATE INDEX jobmill_lane_later ON jobmill_jobs (queue, joined_ms) WHERE slot = -2 AND state = 'waiting';
-- Final jobs of a lane, for people who look for them.
CREATE INDEX jobmill_of_lane ON jobmill_jobs (lane) WHERE lane IS NOT NULL;

-- The settings of a lane as JSON, the window of its rate, and when the rate allows more jobs that are ready.
CREATE TABLE jobmill_lanes (
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    settings TEXT NOT NULL DEFAULT '{}',
    window_ends_ms INTEGER NOT NULL DEFAULT 0,
    window_used INTEGER NOT NULL DEFAULT 0,
    again_ms INTEGER,
    PRIMARY KEY (queue, lane)
) WITHOUT ROWID;
CREATE INDEX jobmill_lanes_again ON jobmill_lanes (queue, again_ms) WHERE again_ms IS NOT NULL;

-- The rule for all lanes of a queue as JSON. A table of its own: older versions replace whole rows of jobmill_queues.
-- after_lane: the rule has changed, and the slots of the lanes after this one are not right yet.
CREATE TABLE jobmill_lane_rules (queue TEXT PRIMARY KEY, rule TEXT, after_lane TEXT) WITHOUT ROWID;
