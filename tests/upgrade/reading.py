"""What a store holds, as plain values under names of their own: code may rename its fields, frozen files may not."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from jobmill.core.job import Job
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, QueueSettings
from jobmill.store import Store
from tests.upgrade.scene import TABLE


async def read(store: Store) -> dict[str, Any]:
    """Everything that the port shows; jobs by id."""
    jobs: list[Job] = []
    cursor: str | None = None
    while True:
        page = await store.find(EVERYTHING, cursor, 10)
        jobs += page.jobs
        cursor = page.next
        if cursor is None:
            break
    settings = await store.settings()
    logs = {job.id: [[line.at_ms, line.text] for line in await store.logs(job.id)] for job in jobs}
    events = {queue: [event.to_dict() for event in await store.events(queue)] for queue in settings}
    counts = [[one.queue, one.name, one.state, one.count] for one in await store.count(EVERYTHING)]
    return {
        "jobs": {job.id: plain(job) for job in jobs},
        "logs": {id: lines for id, lines in logs.items() if lines},
        "settings": {queue: _plain_settings(one) for queue, one in settings.items()},
        "events": {queue: told for queue, told in events.items() if told},
        "counts": sorted(counts),
    }


def plain(job: Job) -> dict[str, Any]:
    """A job as JSON-ready values, without those that it does not have."""
    values: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "due": job.due_ms,
        "created": job.created_ms,
        "updated": job.updated_ms,
        "started": job.started_ms,
        "finished": job.finished_ms,
        "errors": job.errors,
        "crashes": job.crashes,
        "claims": job.claims,
        "worker": job.worker,
        "progress": None if job.progress is None else [job.progress.value, job.progress.message],
        "error": job.error,
        "tracebacks": [one.traceback for one in job.attempts] or None,
        "unique_key": job.unique_key,
        "tenant": job.tenant,
        "options": msgspec.to_builtins(job.options) or None,
        "recurrence": None if job.recurrence is None else _plain_recurrence(job.recurrence),
        "occurrence": job.occurrence_ms,
        "runs": job.runs or None,
        "failed_runs": job.failed_runs or None,
        "last_error": job.last_error,
        "last_finished": job.last_finished_ms,
    }
    present = {name: value for name, value in values.items() if value is not None}
    # None is a payload, and a result, like any other.
    return present | {"payload": job.payload, "result": job.result}


def _plain_settings(settings: QueueSettings) -> dict[str, Any]:
    """Without a pause that nothing is known of, and without a rule for lanes: the first version had neither."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: value for name, value in values.items() if name not in ("pause", "lanes") or value is not None}


def _plain_recurrence(recurrence: Recurrence) -> dict[str, Any]:
    return {
        "key": recurrence.key,
        "cron": recurrence.cron,
        "every": recurrence.every_ms,
        "timezone": recurrence.timezone,
        "until": recurrence.until_ms,
        "revision": recurrence.revision,
    }


async def table_rows(sql: Any) -> list[dict[str, Any]]:
    """The rows of the jobs table, as JSON shows them."""
    await sql.execute("SET timezone = 'UTC'")
    rows = await sql.fetch(f"SELECT row_to_json(one)::text FROM (SELECT * FROM {TABLE} ORDER BY id) AS one")
    return [json.loads(row[0]) for row in rows]
