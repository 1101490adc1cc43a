-- Finished runs of recurring jobs, for the statistics: such a job waits again, and so is not in the history.
CREATE TABLE {schema}.runs (
    finished_ms bigint NOT NULL,
    duration_ms bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL
);
CREATE INDEX runs_finished ON {schema}.runs (finished_ms);

DROP FUNCTION IF EXISTS {schema}.settle_waiting(bigint, json);
-- install settle_waiting
