-- The row `jobs` as the JSON text of a Job: an expression that replaces {job} in the other statements.
-- Columns that hold JSON are inserted unchanged. NULL columns are left out, so that a plain job is read faster.
-- {never} is NEVER_MS.
'{"payload_json":' || coalesce(jobs.payload, (SELECT big.payload FROM jobmill_payloads AS big WHERE big.seq = jobs.seq))
|| CASE
    WHEN coalesce(
        jobs.options, jobs.unique_key, jobs.tenant, jobs.error, jobs.result, jobs.finished_ms, jobs.progress,
        jobs.attempts, jobs.tracebacks, jobs.recurrence, jobs.slot_ms, jobs.last_finished_ms, jobs.last_error,
        jobs.doomed, jobs.held, jobs.unstarted, jobs.flow, jobs.dependencies, jobs.waits_for, jobs.lane
    ) IS NULL THEN ''
    ELSE coalesce(',"options":' || jobs.options, '')
        || coalesce(',"result_json":' || jobs.result, '')
        || coalesce(',"progress":' || jobs.progress, '')
        || coalesce(
            ',"attempts":' || coalesce(
                jobs.attempts,
                CASE
                    WHEN json_valid(jobs.tracebacks)
                        THEN (SELECT json_group_array(json_object('traceback', value)) FROM json_each(jobs.tracebacks))
                    ELSE jobs.tracebacks
                END
            ),
            ''
        )
        || coalesce(CASE WHEN jobs.due_ms = {never} THEN ',"held":' || jobs.held END, '')
        || coalesce(',"recurrence":' || jobs.recurrence, '')
        || coalesce(',"unstarted":' || jobs.unstarted, '')
        || coalesce(',"dependencies":' || jobs.dependencies, '')
        || ','
        || trim(
            json_object(
                'finished_ms', jobs.finished_ms, 'error', jobs.error, 'unique_key', jobs.unique_key,
                'tenant', jobs.tenant, 'slot_ms', jobs.slot_ms, 'runs', jobs.runs, 'failed_runs', jobs.failed_runs,
                'last_error', jobs.last_error, 'last_finished_ms', jobs.last_finished_ms, 'doomed', jobs.doomed,
                'flow', jobs.flow, 'waits_for', jobs.waits_for, 'lane', jobs.lane
            ),
            '{}'
        )
END
|| ','
|| substr(
    json_object(
        'id', jobs.id, 'name', jobs.name, 'queue', jobs.queue, 'state', jobs.state, 'priority', jobs.priority,
        'due_ms', jobs.due_ms, 'created_ms', jobs.created_ms, 'updated_ms', jobs.updated_ms,
        'started_ms', jobs.started_ms, 'errors', jobs.errors, 'crashes', jobs.crashes, 'claims', jobs.claims,
        'worker', jobs.worker
    ),
    2
)
