"""The verb report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmill.core.events import bare_job, progress_event
from jobmill.core.values import Report
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_events

_encode = msgspec.json.Encoder().encode


async def report(context: PostgresContext, reports: Sequence[Report]) -> list[str]:
    if not reports:
        return []
    documents = _encode([_document(one) for one in reports]).decode()

    async def work(connection: Connection) -> list[str]:
        rows = await connection.fetch(context.statements.call("report", 2), context.clock.given_ms(), documents)
        errors: dict[str, int | None] = {row[0]: row[1] for row in rows}
        now_ms = context.clock.now()
        events = [
            progress_event(bare_job(one.lease.id, one.lease.name, one.lease.queue, "running", n), one.progress, now_ms)
            for one in reports
            if one.progress is not None and (n := errors[one.lease.id]) is not None
        ]
        await add_events(connection, context.statements, events)
        return [one.lease.id for one in reports if errors[one.lease.id] is None]

    return await context.transact(work)


def _document(one: Report) -> dict[str, object]:
    progress = None if one.progress is None else _encode(one.progress).decode()
    about = {"id": one.lease.id, "token": one.lease.token, "progress": progress}
    return {**about, "lines": one.lines, "attempt": one.attempt, "level": one.level}
