"""Claims as parameters of an exchange, and the jobs that were claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import asyncpg
from msgspec import structs

from jobmill.core.events import Event, bare_job, claim_events
from jobmill.core.values import Broken, Claim, Claimed
from jobmill.stores.common.claim_cursor import Position, Start
from jobmill.stores.postgres.codec import claimed_job

#: Beyond every priority.
MAX_INTEGER = 2**31 - 1
#: Where a claim begins that knows no position: what it has seen of rewinds, five columns of positions, four of gaps.
NO_POSITIONS: tuple[object, ...] = (None, [], [], [], [], [], [], [], [], [])
#: The parameters of an exchange that claims nothing.
NO_CLAIM: tuple[object, ...] = ([], [], [], 0, 0, "", "", [], *NO_POSITIONS)


def parameters(claim: Claim, start: Start, excluded: list[str]) -> tuple[object, ...]:
    """What the function exchange takes of a claim that begins at `start` and leaves the `excluded` jobs out.

    Positions of known priorities are given as arrays; so are the gaps between them, in which new priorities are
    looked for.
    """
    ranges: list[tuple[object, ...]] = []
    gaps: list[tuple[object, ...]] = []
    for (queue, name), known in start.positions.items():
        above: float = -1
        for priority, (due_ms, seq) in sorted(known.items()):
            ranges.append((queue, name, priority, due_ms, seq))
            if priority > above + 1:
                gaps.append((queue, name, above, priority))
            above = priority
        gaps.append((queue, name, above, MAX_INTEGER))
    names, rooms = list(claim.names), list(claim.names.values())
    wish = (list(claim.queues), names, rooms, claim.n, claim.lease_ms, claim.worker, claim.token, excluded)
    return (*wish, start.seen, *_columns(ranges, 5), *_columns(gaps, 4))


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def claimed_jobs(rows: Sequence[asyncpg.Record], claim: Claim, now_ms: int) -> list[Claimed | Broken]:
    """The claimed jobs, in claim order."""
    order = {queue: number for number, queue in enumerate(claim.queues)}
    ordered = sorted(rows, key=lambda row: (order[row[1]], row[4], row[5], row[7]))
    return [claimed_job(row, claim, now_ms) for row in ordered]


def positions(rows: Iterable[asyncpg.Record], now_ms: int) -> list[tuple[str, str, int, Position]]:
    """Queue, name, priority and position of claimed jobs.

    A lane gives slots to older jobs, which are then due at that moment: the next claim reads this millisecond again.
    """
    return [(row[1], row[2], row[4], (row[5], 0 if _is_given_now(row, now_ms) else row[7])) for row in rows]


def given_now(rows: Iterable[asyncpg.Record], now_ms: int) -> int:
    """How many of these claimed jobs have got the slots of their lanes in this call."""
    return sum(_is_given_now(row, now_ms) for row in rows)


def _is_given_now(row: asyncpg.Record, now_ms: int) -> bool:
    return row[5] == now_ms and '"lane":' in (row[11] or "")


def events_of(rows: Iterable[asyncpg.Record], worker: str, now_ms: int) -> list[Event]:
    """The events of claimed jobs."""
    events: list[Event] = []
    for row in rows:
        job = bare_job(row[0], row[2], row[1], "running", row[8], worker)
        events += claim_events(job, now_ms, lease_lost=row[12])
    return events


def rest(claim: Claim, rows: Sequence[asyncpg.Record]) -> Claim:
    """What a claim still wants after these rows."""
    taken = Counter(row[2] for row in rows)
    names = {name: room - taken[name] for name, room in claim.names.items()}
    return structs.replace(claim, n=claim.n - len(rows), names=names)
