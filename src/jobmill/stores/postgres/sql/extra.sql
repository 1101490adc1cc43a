-- The columns that most jobs do not use, as the rest of a JSON object: an expression over a row `jobs`. NULL where the
-- job uses none of them. Columns that hold JSON are inserted unchanged.
CASE
    WHEN (
        jobs.unique_key, jobs.tenant, jobs.options, jobs.error, jobs.result, jobs.progress, jobs.tracebacks, jobs.doomed,
        jobs.recurrence, jobs.last_finished_ms, jobs.attempts, jobs.held, jobs.unstarted, jobs.flow, jobs.dependencies,
        jobs.waits_for, jobs.lane
    ) IS NULL THEN NULL
    ELSE coalesce('"lane":' || to_json(jobs.lane)::text || ',', '')
        || coalesce('"options":' || jobs.options || ',', '')
        || coalesce('"result_json":' || jobs.result || ',', '')
        || coalesce('"progress":' || jobs.progress || ',', '')
        || coalesce('"attempts":' || coalesce(jobs.attempts, jobs.tracebacks) || ',', '')
        || coalesce('"held":' || jobs.held || ',', '')
        || coalesce('"recurrence":' || jobs.recurrence || ',', '')
        || coalesce('"unstarted":' || jobs.unstarted || ',', '')
        || coalesce('"dependencies":' || jobs.dependencies || ',', '')
        || coalesce('"flow":' || to_json(jobs.flow)::text || ',', '')
        || coalesce('"waits_for":' || to_json(jobs.waits_for)::text || ',', '')
        || substr(
            json_build_object(
                'unique_key', jobs.unique_key, 'tenant', jobs.tenant, 'error', jobs.error, 'doomed', jobs.doomed,
                'slot_ms', jobs.slot_ms, 'runs', coalesce(jobs.runs, 0), 'failed_runs', coalesce(jobs.failed_runs, 0),
                'last_error', jobs.last_error, 'last_finished_ms', jobs.last_finished_ms,
                'revision', coalesce(jobs.revision, 0)
            )::text,
            2
        )
END
