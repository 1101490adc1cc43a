-- Cancel a live job, as the verb does: see cancel.sql.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_cancel(
    this text[], at_ms bigint DEFAULT {schema}.now_ms(), age_ms bigint[] DEFAULT '{{keep_failed_ms}}',
    keep_last integer[] DEFAULT '{NULL}'
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM {schema}.jobs_table_tell('cancelled', this);
    {cancel};
END $$;

-- Take jobs away, whatever they are: whoever runs one loses the lease. See remove.sql.
CREATE OR REPLACE FUNCTION {schema}.jobs_table_remove(these text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    PERFORM {schema}.jobs_table_tell('removed', these);
    {remove};
END $$;
