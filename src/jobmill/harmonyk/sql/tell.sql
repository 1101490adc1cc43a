-- Add an event about jobs to the feeds that are on.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_tell(fact text, these text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.queues WHERE queues.feed) THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.events (queue, event)
    SELECT
        job.queue,
        json_build_object(
            'type', fact, 'job_id', job.id, 'name', job.name, 'queue', job.queue, 'at_ms', {schema}.now_ms(),
            'attempt', CASE WHEN job.state = 'failed' THEN greatest(job.errors, 1) ELSE job.errors + 1 END
        )::text
    FROM (
        SELECT jobs.id, jobs.name, jobs.queue, jobs.errors, 'live' AS state
        FROM {schema}.jobs WHERE jobs.id = ANY (these)
        UNION ALL
        SELECT history.id, history.name, history.queue, history.errors, history.state
        FROM {schema}.history WHERE history.id = ANY (these)
    ) AS job
    JOIN {schema}.queues AS known ON known.queue = job.queue AND known.feed;
END $$;
