-- Jobs by seq, in the order given, as one JSON text: one step, and the GIL is given up once, not once a row.
-- ?1 seqs as JSON. One row: the JSON of all jobs, as a blob, so that no text that is not UTF-8 can stop the reading.
-- Measured at 50 a statement, with decoding: 2.0 us a job; rows fetched and made into Jobs one by one 3.2 us, and each
-- row gives the GIL up.
SELECT CAST('[' || group_concat({job}) || ']' AS BLOB)
FROM json_each(?1) AS wanted CROSS JOIN jobmill_jobs AS jobs ON jobs.seq = wanted.value
