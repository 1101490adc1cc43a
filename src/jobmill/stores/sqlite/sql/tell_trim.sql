-- Keep a feed to its length.
-- ?1 queue, ?2 the number of the last event to go.
DELETE FROM jobmill_events WHERE queue = ?1 AND number <= ?2
