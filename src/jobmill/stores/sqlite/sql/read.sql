-- Jobs by seq, in the order given, as one JSON text: SQLite releases the GIL once, not once for each row.
-- ?1 seqs as JSON. One row: the JSON of all jobs, as a blob, because text that is not UTF-8 would raise an error.
-- Measured at 50 a statement, with decoding: 2.0 us a job; fetching and decoding rows one by one took 3.2 us.
SELECT CAST('[' || group_concat({job}) || ']' AS BLOB)
FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = wanted.value
