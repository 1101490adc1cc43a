"""The verb exchange: settle and claim in one statement."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec import structs

from jobmill.core.events import Event, bare_job, claim_events, job_event, settlement_events
from jobmill.core.values import Broken, Claim, Claimed, Exchanged, Lease, Settled, Settlement
from jobmill.stores.postgres.connections import Connection, transaction
from jobmill.stores.postgres.feeds import tell
from jobmill.stores.postgres.hints import Asked
from jobmill.stores.postgres.offices import Office
from jobmill.stores.postgres.rows import Unreadable, claimed_job
from jobmill.stores.postgres.statements import Statements, quoted

_encode = msgspec.json.Encoder().encode
_decode_ids = msgspec.json.Decoder(list[str]).decode

# at_ms, told, 14 arrays of final jobs, others, settled queues, 8 of the claim, rewound, 5 of lines, 4 of gaps
PARAMETERS = 2 + 14 + 2 + 8 + 10

#: What an exchange without a claim asks for.
_NO_CLAIM: tuple[object, ...] = ([], [], [], 0, 0, "", "", [])
NO_HINTS: tuple[object, ...] = (-1, [], [], [], [], [], [], [], [], [])


@functools.cache
def call(statements: Statements) -> str:
    """The statement of an exchange."""
    numbers = ", ".join(f"${number}" for number in range(1, PARAMETERS + 1))
    return f"SELECT * FROM {quoted(statements.schema)}.exchange({numbers})"


class Batch:
    """The settlements of one exchange: those that go into the statement, and what became of each."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self.settlements = settlements
        self.sent: dict[str, Settlement] = {}
        #: Further settlements of the same jobs, under other leases maybe: one after the other.
        self.later: list[Settlement] = []
        for one in settlements:
            if self.sent.setdefault(one.lease.id, one) is not one:
                self.later.append(one)
        self.done: set[str] = set()
        self._later_answers: list[Settled] = []

    def parameters(self) -> tuple[object, ...]:
        """What the statement takes of them: 14 columns of those that are final, the others as JSON, their queues."""
        final = [one for one in self.sent.values() if one.state != "waiting"]
        others = [one for one in self.sent.values() if one.state == "waiting"]
        queues = list({one.lease.queue for one in self.sent.values()})
        return (*_final(final), _encode([_waiting(one) for one in others]).decode() if others else None, queues)

    def not_these(self) -> list[str]:
        """What waits again is not for the claim of the same call."""
        return [one.lease.id for one in self.sent.values() if one.state == "waiting"]

    def learn(self, done: str | None) -> None:
        """What the statement says: the ids that were settled, or None for all."""
        self.done = set(self.sent) if done is None else set(_decode_ids(done))

    def overtaken(self) -> list[Settlement]:
        """Those that were not done and may have been decided from a recurrence that has changed since."""
        if len(self.done) == len(self.sent):
            return []
        return [one.overtaken() for id, one in self.sent.items() if id not in self.done and _guarded(one)]

    def answers(self) -> list[Settled]:
        """An answer per settlement, in their order."""
        if len(self.done) == len(self.settlements):
            return ["done"] * len(self.settlements)
        later = iter(self._later_answers)
        return [
            ("done" if one.lease.id in self.done else "lost") if self.sent[one.lease.id] is one else next(later)
            for one in self.settlements
        ]

    def also(self, overtaken: Iterable[str], later: list[Settled]) -> None:
        """What was settled by what overtaken() says, and what became of `later`."""
        self.done.update(overtaken)
        self._later_answers = later

    def freed(self) -> set[str]:
        """Queues in which a job waits again and is due at once, or has left room for another."""
        return {
            one.lease.queue
            for id, one in self.sent.items()
            if one.state == "waiting" and id in self.done and (one.due is None or one.due.after_ms == 0)
        }

    def events(self, now_ms: int) -> Iterable[Event]:
        """What those that were done tell."""
        for id, one in self.sent.items():
            if id in self.done:
                yield from settlement_events(one, now_ms)
                if one.keep is not None and one.keep.at_once and one.state != "waiting":
                    gone = bare_job(id, one.lease.name, one.lease.queue, one.state, one.errors)
                    yield job_event(gone, "removed", now_ms)


def _final(settlements: list[Settlement]) -> tuple[list[Any], ...]:
    if not settlements:
        return ([],) * 14
    many = settlements
    recurring = any(one.runs is not None for one in many)
    return (
        [one.lease.id for one in many],
        [one.lease.token for one in many],
        [one.state for one in many],
        [one.errors for one in many],
        [one.crashes for one in many],
        [one.result_json.decode() for one in many],
        [one.error for one in many],
        [None if one.tracebacks is None else _encode(one.tracebacks).decode() for one in many],
        [one.keep and one.keep.age_ms for one in many],
        [one.keep and one.keep.last for one in many],
        [one.runs and one.runs.runs for one in many] if recurring else [],
        [one.runs and one.runs.failed_runs for one in many] if recurring else [],
        [one.runs and one.runs.last_error for one in many] if recurring else [],
        [one.runs and one.runs.revision if _guarded(one) else None for one in many] if recurring else [],
    )


def _waiting(one: Settlement) -> dict[str, object]:
    runs = one.runs
    return {
        "id": one.lease.id,
        "token": one.lease.token,
        "errors": one.errors,
        "crashes": one.crashes,
        "error": one.error,
        "result": one.result_json.decode(),
        "tracebacks": None if one.tracebacks is None else _encode(one.tracebacks).decode(),
        "due_ms": one.due and one.due.at_ms,
        "delay_ms": one.due.after_ms if one.due is not None and one.due.at_ms is None else None,
        "slot_ms": one.rearm and one.rearm.occurrence_ms,
        "runs": runs and runs.runs,
        "failed_runs": runs and runs.failed_runs,
        "last_error": runs and runs.last_error,
        "revision": runs.revision if runs is not None and _guarded(one) else None,
    }


def _guarded(one: Settlement) -> bool:
    """Whether it holds only for the recurrence that it was decided from; what overtaken() says holds for any."""
    return one.runs is not None and (one.state != "waiting" or one.rearm is not None)


def claim_parameters(claim: Claim | None, not_these: list[str]) -> tuple[object, ...]:
    """What the statement takes of a claim."""
    if claim is None:
        return _NO_CLAIM
    names, rooms = list(claim.names), list(claim.names.values())
    return (list(claim.queues), names, rooms, claim.n, claim.lease_ms, claim.worker, claim.token, not_these)


def claimed(rows: Sequence[asyncpg.Record], claim: Claim, now_ms: int) -> list[Claimed | Broken]:
    """The claimed jobs, in claim order."""
    places = {queue: place for place, queue in enumerate(claim.queues)}
    ordered = sorted(rows, key=lambda row: (places[row[1]], row[4], row[5], row[7]))
    return [_leased(row, claim, now_ms) for row in ordered]


def _leased(row: asyncpg.Record, claim: Claim, now_ms: int) -> Claimed | Broken:
    lease = Lease(row[0], claim.token, row[1], row[2], now_ms + claim.lease_ms)
    try:
        return Claimed(claimed_job(row, claim.worker, now_ms), lease)
    except Unreadable as error:
        return Broken(lease, str(error))


def _events_of_claim(rows: Sequence[asyncpg.Record], worker: str, now_ms: int) -> Iterable[Event]:
    """What claimed jobs tell."""
    for row in rows:
        job = bare_job(row[0], row[2], row[1], "running", row[8], worker)
        yield from claim_events(job, now_ms, lease_lost=row[12])


def _rest(claim: Claim, rows: Sequence[asyncpg.Record]) -> Claim:
    """What a claim leaves to be wished for."""
    taken = Counter(row[2] for row in rows)
    names = {name: room - taken[name] for name, room in claim.names.items()}
    return structs.replace(claim, n=claim.n - len(rows), names=names)


class Exchanging:
    """One exchange: the call, and what it is told to feeds, hints and sleepers."""

    def __init__(
        self,
        office: Office,
        statements: Statements,
        settlements: Sequence[Settlement],
        claim: Claim | None,
        at_ms: int | None,
    ) -> None:
        self._office = office
        self._statements = statements
        self._batch = Batch(settlements)
        self._claim = claim
        self._at_ms = at_ms
        self._queues = {one.lease.queue for one in settlements} | set(claim.queues if claim else ())
        #: Queues in which something may be claimable now that was not before.
        self.wakes: set[str] = set()

    async def run(self) -> Exchanged:
        """Settle, then claim; the answer."""
        office, batch, claim = self._office, self._batch, self._claim
        asked = None if claim is None else office.hints.ask(claim)
        hints = NO_HINTS if asked is None else asked.parameters
        parameters = (*batch.parameters(), *claim_parameters(claim, batch.not_these()), *hints)
        rows, head = await self._call(parameters)
        now_ms: int = head[6]
        jobs, next_due_ms = await self._learn(asked, rows, head)
        overtaken = batch.overtaken()
        answers = await self._settle(overtaken)
        settled = [one.lease.id for one, how in zip(overtaken, answers, strict=True) if how == "done"]
        batch.also(settled, await self._settle(batch.later))
        self.wakes = batch.freed()
        if settled or batch.later:
            # What was settled after the claim may be due before what the claim has seen.
            next_due_ms = now_ms
        return Exchanged(settled=batch.answers(), claimed=jobs, next_due_ms=next_due_ms, now_ms=now_ms)

    async def _learn(
        self, asked: Asked | None, rows: list[asyncpg.Record], head: asyncpg.Record
    ) -> tuple[list[Claimed | Broken], int | None]:
        """What was claimed, and when to claim again; where hints may have hidden something, after a second look."""
        claim, hints = self._claim, self._office.hints
        next_due_ms: int | None = head[5]
        if claim is None or asked is None:
            return [], next_due_ms
        jobs = claimed(rows, claim, head[6])
        places = [(row[1], row[2], row[4], row[5], row[7]) for row in rows]
        passed = bool(self._batch.not_these())
        hints.learn(asked, places, head[7], pages=head[8], full=len(rows) >= claim.n, passed=passed)
        # What was settled here to wait is not for this call; no place hides it, for it lies ahead or was a rewind.
        again_ms = None if passed else hints.look_again_ms(asked)
        if again_ms == 0:
            rest = await Exchanging(self._office, self._statements, [], _rest(claim, rows), self._at_ms).run()
            return jobs + rest.claimed, rest.next_due_ms
        if again_ms is not None:
            next_due_ms = min(head[6] + again_ms, next_due_ms or head[6] + again_ms)
        return jobs, next_due_ms

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """In a call of their own; mostly there are none."""
        if not settlements:
            return []
        return (await Exchanging(self._office, self._statements, settlements, None, self._at_ms).run()).settled

    async def _call(self, parameters: tuple[object, ...]) -> tuple[list[asyncpg.Record], asyncpg.Record]:
        told = self._office.told
        if not told.knows(self._queues):
            rows = await self._office.connections.use(
                lambda connection: connection.fetch(call(self._statements), self._at_ms, False, *parameters)
            )
            head = rows.pop()
            if head[11] != "feed":
                self._batch.learn(head[3])
                return rows, head
            told.suspect(self._queues)
        return await self._office.connections.use(lambda connection: self._call_told(connection, parameters))

    async def _call_told(
        self, connection: Connection, parameters: tuple[object, ...]
    ) -> tuple[list[asyncpg.Record], asyncpg.Record]:
        async with transaction(connection):
            rows = await connection.fetch(call(self._statements), self._at_ms, True, *parameters)
            head = rows.pop()
            self._batch.learn(head[3])
            now_ms: int = head[6]
            events = list(self._batch.events(now_ms))
            if self._claim is not None:
                events += _events_of_claim(rows, self._claim.worker, now_ms)
            on = await tell(connection, self._statements, events)
        if events:
            self._office.told.learn({event.queue for event in events}, on)
        return rows, head
