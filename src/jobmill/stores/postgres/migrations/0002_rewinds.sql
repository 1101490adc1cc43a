-- Claim cursors are rewound when a transaction commits. The sequence that counted rewinds showed each of them at once.
DROP SEQUENCE {schema}.rewinds;

-- Transactions that put a job before the position of a claim cursor: claims that do not know one of them begin at the
-- start again. A row is visible when the job is. The table need not survive a crash: without it, a job is found when
-- claims next return to the start.
CREATE UNLOGGED TABLE {schema}.rewinds (xid xid8 PRIMARY KEY DEFAULT pg_current_xact_id());

-- A superuser may migrate: the functions that write here have the rights of the schema's owner.
DO $$
BEGIN
    EXECUTE 'ALTER TABLE {schema}.rewinds OWNER TO '
        || (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = '{schema}.jobs'::regclass);
END $$;

DROP FUNCTION IF EXISTS {schema}.exchange(
    bigint, boolean, text[], text[], text[], integer[], integer[], text[], text[], text[], bigint[], integer[],
    integer[], integer[], text[], integer[], json, text[], text[], text[], integer[], integer, bigint, text, text,
    text[], bigint, text[], text[], integer[], bigint[], bigint[], text[], text[], integer[], integer[]
);

-- install enqueue_jobs
-- install enqueue_recurring
DROP FUNCTION IF EXISTS {schema}.settle_waiting(bigint, json);
-- install settle_waiting
-- Also: a claim that finds nothing returns when the first lease ends, and names the worker whose lease has ended.
-- install claim
-- install exchange
