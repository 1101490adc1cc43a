-- Where the jobs table of the schema is, who installed it, and who asks. No parameters.
SELECT format('%I.%I', pg_namespace.nspname, pg_class.relname), pg_get_userbyid(pg_proc.proowner), current_user
FROM pg_trigger
JOIN pg_class ON pg_class.oid = pg_trigger.tgrelid
JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
JOIN pg_proc ON pg_proc.oid = pg_trigger.tgfoid
WHERE pg_trigger.tgfoid = to_regproc('{schema}.jobs_table_inserted')
