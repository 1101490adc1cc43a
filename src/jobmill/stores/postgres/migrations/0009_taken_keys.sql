-- Unique keys that stay taken until a time, whatever becomes of the job that took them. `hash` is the key_hash of the key.
CREATE TABLE {schema}.taken_keys (
    hash bytea NOT NULL,
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (hash, queue, name)
);
CREATE INDEX taken_keys_id ON {schema}.taken_keys (id);
CREATE INDEX taken_keys_until ON {schema}.taken_keys (until_ms);

-- install cancel_jobs
-- install key_owners
-- install enqueue_by_policy

-- A superuser may migrate: what is new belongs to the owner of the schema, who grants the roles their rights.
DO $$
DECLARE
    owner text := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = '{schema}.jobs'::regclass);
    one text;
BEGIN
    EXECUTE 'ALTER TABLE {schema}.taken_keys OWNER TO ' || owner;
    FOREACH one IN ARRAY ARRAY['cancel_jobs', 'key_owners', 'enqueue_by_policy'] LOOP
        EXECUTE 'ALTER FUNCTION {schema}.' || one || ' OWNER TO ' || owner;
    END LOOP;
END $$;
