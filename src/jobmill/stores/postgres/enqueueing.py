"""The verb enqueue: what is sent, and what became of each job. Also for callers' own connections: see within.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from jobmill.core.events import Event
from jobmill.core.job import NO_OPTIONS
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import StoreBusy

_encode = msgspec.json.Encoder().encode

#: The functions of the schema that enqueue, and the types of what they take.
TYPES: dict[str, tuple[str, ...]] = {
    "enqueue_jobs": (
        *("bigint", "boolean", "boolean", "bigint", "text[]", "text[]", "text[]", "integer[]", "bigint[]", "bigint[]"),
        *("text[]", "text[]", "text[]", "text[]"),
    ),
    "enqueue_recurring": (
        *("bigint", "boolean", "boolean", "bigint", "text", "text", "text", "integer", "bigint", "bigint", "text"),
        *("text", "text", "text", "text", "boolean"),
    ),
}

#: Calls a function of TYPES with what it takes; its rows.
Ask = Callable[[str, Sequence[object]], Awaitable[Sequence[Sequence[Any]]]]

# An owner of a unique key that is gone whenever we look: more often than this is no coincidence.
_TRIES = 20
# Of payloads, in one statement: PostgreSQL takes no more than 1 GB.
MOST_BYTES = 128 * 1024 * 1024


class FeedIsOn(Exception):
    """Nothing was done: the feed of a queue is on, and what is told must be in the same transaction."""


class Elsewhere(Exception):
    """Nothing was done: this is not the database that it should be."""


async def enqueue(
    ask: Ask, new_jobs: Sequence[NewJob], at_ms: int | None, *, told: bool, inside: bool, home: int | None = None
) -> list[Receipt]:
    """Insert jobs; a receipt for each, in order. FeedIsOn unless `told`; `inside` a caller's transaction.

    With `home` (see home.sql) Elsewhere where the schema is another one.
    """
    receipts: list[Receipt] = []
    first = (at_ms, told, inside, home)
    for group in _groups(new_jobs):
        if group[0].recurrence is None:
            receipts += await _insert(ask, group, first)
        else:
            receipts.append(await _recurring(ask, group[0], first))
    return receipts


def is_one_call(new_jobs: Sequence[NewJob]) -> bool:
    """Whether one statement does it all, and so needs no transaction around it."""
    groups = _groups(new_jobs)
    next(groups, None)
    return next(groups, None) is None


def _groups(new_jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Runs of jobs that one statement takes: without recurrence and of different ids, or one with a recurrence."""
    group: list[NewJob] = []
    seen: set[str] = set()
    size = 0
    for new in new_jobs:
        size += len(new.payload_json)
        alone = new.recurrence is not None or (group and group[0].recurrence is not None)
        if group and (alone or new.id in seen or size > MOST_BYTES):
            yield group
            group, seen, size = [], set(), len(new.payload_json)
        group.append(new)
        seen.add(new.id)
    if group:
        yield group


async def _insert(ask: Ask, new_jobs: list[NewJob], first: tuple[object, ...]) -> list[Receipt]:
    receipts = [Receipt(new.id, "created") for new in new_jobs]
    places = list(range(len(new_jobs)))
    for _ in range(_TRIES):
        rows = await ask("enqueue_jobs", (*first, *_columns([new_jobs[place] for place in places])))
        again = []
        for number, id, how in rows:
            _check_done(how)
            if how == "again":
                again.append(places[number - 1])
            else:
                receipts[places[number - 1]] = Receipt(id, how)
        if not again:
            return receipts
        places = again
    raise StoreBusy(f"{_TRIES} times the live job that has a unique key of these was there, and gone when looked at")


def _check_done(how: str) -> None:
    if how == "feed":
        raise FeedIsOn
    if how == "elsewhere":
        raise Elsewhere


def _columns(new_jobs: Sequence[NewJob]) -> tuple[list[object], ...]:
    """One list per parameter; an empty one where no job says anything."""
    return (
        [new.id for new in new_jobs],
        [new.queue for new in new_jobs],
        [new.name for new in new_jobs],
        [new.priority for new in new_jobs],
        _or_empty([new.due.at_ms for new in new_jobs]),
        [new.due.after_ms for new in new_jobs],
        [new.payload_json.decode() for new in new_jobs],
        _or_empty([new.unique_key for new in new_jobs]),
        _or_empty([new.tenant for new in new_jobs]),
        _or_empty([_options(new) for new in new_jobs]),
    )


def _or_empty(values: Sequence[object]) -> list[object]:
    return list(values) if any(value is not None for value in values) else []


def _options(new: NewJob) -> str | None:
    plain = new.options is NO_OPTIONS or new.options == NO_OPTIONS
    return None if plain else _encode(new.options).decode()


async def _recurring(ask: Ask, new: NewJob, first: tuple[object, ...]) -> Receipt:
    assert new.recurrence is not None
    # The revision has a column of its own: the rule can then be compared as it is.
    rule = _encode(structs.replace(new.recurrence, revision=0)).decode()
    due = new.due
    ((id, how),) = await ask(
        "enqueue_recurring",
        (
            *first,
            *(new.id, new.queue, new.name, new.priority, due.at_ms, due.after_ms, new.payload_json.decode()),
            *(new.unique_key, new.tenant, _options(new), rule, new.keeps_due),
        ),
    )
    _check_done(how)
    return Receipt(id, how)


def events(new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], now_ms: int) -> list[Event]:
    """What enqueued jobs tell."""
    return [
        Event(type="enqueued", job_id=new.id, name=new.name, queue=new.queue, at_ms=now_ms)
        for new, receipt in zip(new_jobs, receipts, strict=True)
        if receipt.status == "created"
    ]
