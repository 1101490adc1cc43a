"""The verbs change and purge: without a lease, in one transaction each."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from msgspec import Struct

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Changed, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.events import Event, EventType, bare_job, claim_events, job_event
from jobmill.core.job import State, keep_cancelled
from jobmill.core.values import Filter, Purged
from jobmill.stores.postgres.connections import Connection
from jobmill.stores.postgres.feeds import tell
from jobmill.stores.postgres.filters import Conditions
from jobmill.stores.postgres.jobs_table import catch_up
from jobmill.stores.postgres.statements import Statements, quoted


class Row(Struct, frozen=True):
    """What a change must know of a job, which is locked."""

    id: str
    name: str
    queue: str
    state: State
    errors: int
    options: str | None

    def event(self, fact: EventType, now_ms: int, *, state: State | None = None, errors: int | None = None) -> Event:
        """What is told of it."""
        errors = self.errors if errors is None else errors
        return job_event(bare_job(self.id, self.name, self.queue, state or self.state, errors), fact, now_ms)


class Changing:
    """One change, in one transaction: what it did, what it tells."""

    def __init__(self, connection: Connection, statements: Statements, now_ms: int) -> None:
        self._connection = connection
        self._statements = statements
        self._now_ms = now_ms
        self.queues: set[str] = set()

    async def run(self, which: Sequence[str] | Filter, wanted: Change, limit: int) -> Changed:
        """Change jobs by id, or those that match; at most `limit`."""
        allowed = CHANGES_FROM[type(wanted)]
        refused: dict[str, str] = {}
        if isinstance(which, Filter):
            rows, more = await self._by_filter(which, allowed, limit)
        else:
            ids = list(dict.fromkeys(which))
            rows, more = await self._by_id(ids[:limit], refused), len(ids) > limit
        fitting = [row for row in rows if row.state in allowed]
        refused.update({row.id: f"the job is {row.state}" for row in rows if row.state not in allowed})
        events = await self._apply(fitting, wanted, refused)
        await tell(self._connection, self._statements, events)
        changed = [row.id for row in fitting if row.id not in refused]
        self.queues = {row.queue for row in fitting if row.id not in refused}
        return Changed(ids=changed, refused=refused, more=more)

    # ------------------------------------------------------------------------------------------------ which

    async def _by_id(self, ids: Sequence[str], refused: dict[str, str]) -> list[Row]:
        found: dict[str, Row] = {}
        # A job may move from the one to the other between two looks; the third finds what was requeued meanwhile.
        for table in ("live_rows", "final_rows", "live_rows"):
            missing = [id for id in ids if id not in found]
            if missing:
                rows = await self._connection.fetch(self._statements(table), missing)
                found.update({row[0]: Row(*row) for row in rows})
        refused.update({id: "there is no such job" for id in ids if id not in found})
        return [found[id] for id in ids if id in found]

    async def _by_filter(self, filter: Filter, allowed: tuple[State, ...], limit: int) -> tuple[list[Row], bool]:
        where = Conditions(filter, allowed, first=2)
        rows: list[Row] = []
        for table, wanted in (("live_matches", where.has_live), ("final_matches", where.has_final)):
            if wanted and len(rows) <= limit:
                text = where.into(self._statements(table))
                found = await self._connection.fetch(text, limit + 1 - len(rows), *where.parameters)
                rows += [Row(*row) for row in found]
        return rows[:limit], len(rows) > limit

    # ------------------------------------------------------------------------------------------------ what

    async def _apply(self, rows: list[Row], wanted: Change, refused: dict[str, str]) -> list[Event]:
        ids = [row.id for row in rows]
        match wanted:
            case _ if not rows:
                return []
            case Cancel():
                return await self._cancel(rows)
            case Requeue():
                return await self._requeue(rows, wanted, refused)
            case Reschedule():
                await self._write("reschedule", ids, self._now_ms, wanted.due.resolve(self._now_ms))
            case Reprioritize():
                await self._write("reprioritize", ids, self._now_ms, wanted.priority)
            case Remove():
                return await self.remove(rows)
            case Seize():
                return await self._seize(rows, wanted)
        return []

    async def _cancel(self, rows: list[Row]) -> list[Event]:
        keeps = [keep_cancelled(row.options) for row in rows]
        ages, lasts = [keep.age_ms for keep in keeps], [keep.last for keep in keeps]
        await self._write("cancel", [row.id for row in rows], self._now_ms, ages, lasts)
        events = [row.event("cancelled", self._now_ms, state="cancelled") for row in rows]
        gone = [row for row, keep in zip(rows, keeps, strict=True) if keep.at_once]
        return events + await self.remove(gone, state="cancelled")

    async def _requeue(self, rows: list[Row], wanted: Requeue, refused: dict[str, str]) -> list[Event]:
        due_ms = wanted.due.resolve(self._now_ms)
        events: list[Event] = []
        # One by one where a key may be in the way: of two that have the same the first is requeued.
        for row in rows:
            step = round(len(events) * wanted.step_ms)
            owner = await self._connection.fetchval(self._statements("requeue"), row.id, self._now_ms, due_ms + step)
            if owner is None:
                events.append(row.event("enqueued", self._now_ms, state="waiting", errors=0))
            else:
                refused[row.id] = f"the live job {owner} has its unique key"
        return events

    async def _seize(self, rows: list[Row], wanted: Seize) -> list[Event]:
        ids = [row.id for row in rows]
        until_ms = self._now_ms + wanted.lease_ms
        await self._write("seize", ids, self._now_ms, until_ms, wanted.token, wanted.worker)
        jobs = [bare_job(row.id, row.name, row.queue, "running", row.errors, wanted.worker) for row in rows]
        return [event for job in jobs for event in claim_events(job, self._now_ms, lease_lost=False)]

    async def remove(self, rows: Sequence[Row], state: State | None = None) -> list[Event]:
        """Take jobs away, with their log lines."""
        if not rows:
            return []
        await self._write("remove", [row.id for row in rows])
        return [row.event("removed", self._now_ms, state=state) for row in rows]

    async def _write(self, name: str, *parameters: object) -> None:
        await self._connection.execute(self._statements(name), *parameters)

    # ------------------------------------------------------------------------------------------------ purge

    async def purge(self, limit: int) -> Purged:
        """Remove jobs that are too old, then those that are not among the last of their queue and state."""
        await catch_up(self._connection, self._statements)
        found = await self._fetch("purge_old", self._now_ms, limit + 1)
        for queue, state, last in await self._connection.fetch(self._statements("keep_last")):
            if len(found) <= limit:
                more = await self._fetch("purge_surplus", queue, state, last, limit + 1)
                known = {row.id for row in found}
                found += [row for row in more if row.id not in known]
        await tell(self._connection, self._statements, await self.remove(found[:limit]))
        schema = quoted(self._statements.schema)
        await self._connection.execute(f"SELECT {schema}.number_events(queue) FROM {schema}.queues WHERE feed")
        return Purged(min(len(found), limit), more=len(found) > limit)

    async def _fetch(self, name: str, *parameters: object) -> list[Row]:
        rows: list[asyncpg.Record] = await self._connection.fetch(self._statements(name), *parameters)
        return [Row(*row) for row in rows]
