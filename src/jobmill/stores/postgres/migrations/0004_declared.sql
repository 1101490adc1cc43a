-- Recurring jobs that are declared by handlers: a worker looks for them when it starts.
CREATE INDEX jobs_declared ON {schema}.jobs (id) WHERE recurrence LIKE '%"declared":true%';

-- install enqueue_recurring
