-- Number the new events of a queue, and delete those beyond the length of its feed.
-- The queue's row is locked before the events are read: otherwise two readers could give a number twice.
CREATE OR REPLACE FUNCTION {schema}.number_events(this_queue text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    this {schema}.queues%ROWTYPE;
    fresh bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.events WHERE events.queue = this_queue AND events.number IS NULL) THEN
        RETURN;
    END IF;
    SELECT * INTO this FROM {schema}.queues WHERE queues.queue = this_queue FOR UPDATE;
    UPDATE {schema}.events SET number = unread.number
    FROM (
        SELECT events.position, this.last_event + row_number() OVER (ORDER BY events.position) AS number
        FROM {schema}.events WHERE events.queue = this_queue AND events.number IS NULL
    ) AS unread
    WHERE events.position = unread.position;
    GET DIAGNOSTICS fresh = ROW_COUNT;
    UPDATE {schema}.queues SET last_event = this.last_event + fresh WHERE queues.queue = this_queue;
    DELETE FROM {schema}.events
    WHERE events.queue = this_queue AND events.number <= this.last_event + fresh - this.events_max_len;
END $$;
