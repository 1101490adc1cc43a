-- A running job that is due later, because it was seized or its recurrence was changed, has its due time with a minus sign, so
-- that claims find it when its lease has ended: see `shown_due_ms`. Before, they found it only when it was due.

-- install cancel_jobs
-- install enqueue_recurring
-- install settle_final
-- install settle_waiting
