-- Write the card of a worker, and add what it counted unless this announcement was received before. Returns whether the
-- worker must stop. Rows are locked in the order of their keys, so that announcements do not wait for each other in a
-- circle. Each counts is a JSON object of numbers, which are added; each texts one of texts, of which the latest stays.
CREATE OR REPLACE FUNCTION {schema}.announce(
    at_ms bigint, given_id text, given_announcement bigint, given_card text, leaves boolean,
    steps bigint[], starts bigint[], queues text[], names text[], countses text[], textses text[]
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    known {schema}.workers%ROWTYPE;
BEGIN
    INSERT INTO {schema}.workers (id, announcement, seen_ms, card) VALUES (given_id, -1, 0, '') ON CONFLICT DO NOTHING;
    SELECT * INTO known FROM {schema}.workers WHERE id = given_id FOR UPDATE;
    UPDATE {schema}.workers SET
        announcement = given_announcement, card = given_card,
        seen_ms = CASE WHEN leaves THEN 0 ELSE coalesce(at_ms, {schema}.now_ms()) END
    WHERE id = given_id;
    IF known.announcement < given_announcement THEN
        INSERT INTO {schema}.tallies (step_ms, start_ms, queue, name, counts, texts)
        SELECT one.step_ms, one.start_ms, one.queue, one.name, one.counts::jsonb, one.texts::jsonb
        FROM unnest(steps, starts, queues, names, countses, textses)
            AS one (step_ms, start_ms, queue, name, counts, texts)
        ORDER BY one.step_ms, one.start_ms, one.queue COLLATE "C", one.name COLLATE "C"
        ON CONFLICT (step_ms, start_ms, queue, name) DO UPDATE SET
            texts = tallies.texts || excluded.texts,
            counts = (
                SELECT coalesce(jsonb_object_agg(total.field, total.number), '{}')
                FROM (
                    SELECT part.field, sum(part.number::bigint) AS number
                    FROM (
                        SELECT * FROM jsonb_each_text(tallies.counts)
                        UNION ALL
                        SELECT * FROM jsonb_each_text(excluded.counts)
                    ) AS part (field, number)
                    GROUP BY part.field
                ) AS total
            );
    END IF;
    RETURN known.stop;
END $$;
