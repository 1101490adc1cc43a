-- What tells this schema from one of the same name in another database: when it was made, in microseconds.
-- An expression, put in place of {home}. A copy of the database has the same.
(SELECT (extract(epoch FROM made.applied_at) * 1000000)::bigint FROM {schema}.migrations AS made WHERE made.number = 1)
