-- A feed after an event.
-- ?1 queue, ?2 the number of that event, ?3 most. Rows: the event as JSON.
SELECT event FROM jobmill_events WHERE queue = ?1 AND number > ?2 ORDER BY number LIMIT ?3
