-- Take jobs away; a trigger takes their log lines and large payloads.
-- ?1 seqs as JSON.
DELETE FROM jobmill_jobs WHERE seq IN (SELECT value FROM json_each(?1))
