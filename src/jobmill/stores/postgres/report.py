"""The verbs extend and report: what a worker says of jobs that it still runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmill.core.events import Event, bare_job, progress_event
from jobmill.core.values import Lease, Report
from jobmill.stores.postgres.connection.pool import Connection
from jobmill.stores.postgres.feed import tell
from jobmill.stores.postgres.statements import Statements, quoted

_encode = msgspec.json.Encoder().encode


async def extend(
    connection: Connection, statements: Statements, leases: Sequence[Lease], for_ms: int, at_ms: int | None
) -> list[str]:
    """Prolong leases; the ids of those that are lost."""
    ids, tokens = [lease.id for lease in leases], [lease.token for lease in leases]
    text = f"SELECT {quoted(statements.schema)}.extend($1, $2, $3, $4)"
    lost = set(await connection.fetchval(text, at_ms, ids, tokens, for_ms))
    return [lease.id for lease in leases if lease.id in lost]


async def report(
    connection: Connection, statements: Statements, reports: Sequence[Report], at_ms: int | None, now_ms: int
) -> list[str]:
    """Keep progress and log lines; the ids of those whose lease is lost. Within a transaction."""
    text = f"SELECT * FROM {quoted(statements.schema)}.report($1, $2)"
    rows = await connection.fetch(text, at_ms, _encode([_row(one) for one in reports]).decode())
    errors: dict[str, int | None] = {row[0]: row[1] for row in rows}
    await tell(connection, statements, [event for one in reports for event in _events(one, errors, now_ms)])
    return [one.lease.id for one in reports if errors[one.lease.id] is None]


def _row(one: Report) -> dict[str, object]:
    progress = None if one.progress is None else _encode(one.progress).decode()
    return {"id": one.lease.id, "token": one.lease.token, "progress": progress, "lines": one.lines}


def _events(one: Report, errors: dict[str, int | None], now_ms: int) -> list[Event]:
    failed = errors[one.lease.id]
    if one.progress is None or failed is None:
        return []
    job = bare_job(one.lease.id, one.lease.name, one.lease.queue, "running", failed)
    return [progress_event(job, one.progress, now_ms)]
