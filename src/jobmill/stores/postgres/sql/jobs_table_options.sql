-- What the options of a job say that came from the jobs table: it retries as the table's application expects.
-- Put in place of {jobs_table_options}.
'{"preset":"harmonyk"}'
