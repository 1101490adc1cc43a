"""The verb enqueue: what is sent, and the receipts. Transactions of callers use it too: see within.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from jobmill.core.changes import new_hold
from jobmill.core.due import NEVER_MS
from jobmill.core.events import Event, enqueued_events
from jobmill.core.values import NewJob, Receipt, at
from jobmill.errors import StoreBusy
from jobmill.stores.postgres.codec import encoded_rule, new_job_columns, new_job_row
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_and_learn
from jobmill.stores.postgres.flows import add_new_edges, awaited_by
from jobmill.stores.postgres.unique_policy import PLAN_TYPES, insert_by_policy, runs_of_policies

_encode = msgspec.json.Encoder().encode

#: Calls a function of the schema with these parameters, and returns its rows.
CallFunction = Callable[[str, Sequence[object]], Awaitable[Sequence[Iterable[Any]]]]

#: The first parameters of the functions that enqueue: the time, where the store was given a clock; whether the caller
#: adds the events (FeedIsOn otherwise); whether sleepers are woken by the commit of the caller's own transaction; and
#: the id of the schema, if another one is to be refused (WrongSchema).
FirstParameters = tuple[int | None, bool, bool, int | None]

_get_after, _get_flow, _get_policy = attrgetter("after"), attrgetter("flow"), attrgetter("policy")

# A unique key's owner disappears each time that we try to read it: more often than this is no coincidence.
_TRIES = 20
# Payloads in one statement: PostgreSQL accepts no more than 1 GB.
MAX_BYTES = 128 * 1024 * 1024

#: By the ids of new jobs: the events of the jobs that were cancelled for them.
CancelEvents = dict[str, Sequence[Event]]


class FeedIsOn(Exception):
    """Nothing was done: the feed of a queue is on, and its events must be added in the same transaction."""


class WrongSchema(Exception):
    """Nothing was done: the schema is not the one that was meant."""


async def enqueue(context: PostgresContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    if not new_jobs:
        return []
    loop, at_ms = context.loops.here(), context.clock.given_ms()
    queues = {new.queue for new in new_jobs}
    groups = grouped(new_jobs)
    receipts: list[Receipt] = []

    async def work(connection: Connection) -> list[Receipt]:
        return await insert(partial(_call, context, connection), groups, (at_ms, False, False, None), {})

    if len(groups) == 1 and loop.feeds_on.isdisjoint(queues) and not has_edges(new_jobs):
        try:
            receipts = await context.use(work)
        except FeedIsOn:
            loop.feeds_on |= queues
    if not receipts:
        receipts = await context.transact(lambda connection: enqueue_on(context, connection, new_jobs))
    loop.notifications.notify(queues)
    return receipts


def has_edges(new_jobs: Sequence[NewJob]) -> bool:
    """Whether one of these jobs waits for others."""
    return any(map(_get_after, new_jobs))


async def enqueue_on(
    context: PostgresContext, connection: Connection, new_jobs: Sequence[NewJob], now_ms: int | None = None
) -> list[Receipt]:
    """Enqueue in a transaction: several statements, their events, and edges."""
    call = partial(_call, context, connection)
    cancelled: CancelEvents = {}
    waits = has_edges(new_jobs)
    now_ms = now_ms or (await context.now_ms(connection) if waits else context.clock.given_ms())
    awaited = awaited_by(new_jobs) if waits else frozenset()
    receipts = await insert(call, grouped(new_jobs), (now_ms, True, False, None), cancelled, awaited)
    events = events_of(new_jobs, receipts, now_ms or context.clock.now(), cancelled)
    await add_and_learn(context, connection, events)
    if waits and now_ms is not None:
        await add_new_edges(call, new_jobs, receipts, now_ms, inside=False)
    return receipts


def events_of(
    new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], now_ms: int, cancelled: Mapping[str, Sequence[Event]]
) -> list[Event]:
    """The events of an enqueue: each new job, after the cancel of the job whose place it takes."""
    events = enqueued_events(new_jobs, receipts, now_ms)
    return [one for event in events for one in (*cancelled.get(event.job_id, ()), event)] if cancelled else events


async def _call(
    context: PostgresContext, connection: Connection, function: str, parameters: Sequence[Any]
) -> Sequence[Iterable[Any]]:
    """Call a function. For one job, send values, of which the server makes arrays: the driver is slow with lists.

    Counted in instructions of the client, a lone enqueue takes 427,000 with lists and a timer of its own, and 305,000
    with neither (see deadlines.py). PgQueuer takes 210,000, but 463,000 of the server, where this takes 347,000.
    """
    first, columns = parameters[: len(_FIRST_TYPES)], parameters[len(_FIRST_TYPES) :]
    if function != "enqueue_jobs" or len(columns[0]) > 1:
        return await connection.fetch(context.statements.call(function, len(parameters)), *parameters)
    types = tuple(type_ if column else None for type_, column in zip(_COLUMN_TYPES, columns, strict=True))
    text = context.statements.call_for_one(function, len(first), types)
    return await connection.fetch(text, *first, *chain.from_iterable(columns))


def grouped(new_jobs: Sequence[NewJob]) -> list[list[NewJob]]:
    """Runs of jobs that one call takes: without recurrence and of different ids, or one with a recurrence.

    Those with a policy have runs of their own.
    """
    groups: list[list[NewJob]] = []
    ids: set[str] = set()
    size = 0
    for new in new_jobs:
        size += len(new.payload_json)
        is_alone = new.recurrence is not None or (groups and groups[-1][0].recurrence is not None)
        if not groups or is_alone or new.id in ids or size > MAX_BYTES:
            groups.append([])
            ids, size = set(), len(new.payload_json)
        groups[-1].append(new)
        ids.add(new.id)
    has_policies = any(map(_get_policy, new_jobs))
    return [run for group in groups for run in runs_of_policies(group)] if has_policies else groups


async def insert(
    call: CallFunction,
    groups: Sequence[Sequence[NewJob]],
    first: FirstParameters,
    cancelled: CancelEvents,
    awaited: Set[str] = frozenset(),
) -> list[Receipt]:
    """Insert jobs; a receipt for each, in order. `awaited`: the ids that some wait for; then the time is given.

    Events of jobs that were cancelled are added to `cancelled`.
    """
    receipts: list[Receipt] = []
    for group in groups:
        if group[0].recurrence is None:
            receipts += await _insert(call, group, first, awaited, cancelled)
        else:
            receipts += await _insert_recurring(call, group, first)
    return receipts


async def _insert(
    call: CallFunction, group: Sequence[NewJob], first: FirstParameters, awaited: Set[str], cancelled: CancelEvents
) -> list[Receipt]:
    receipts = [Receipt(new.id, "created") for new in group]
    indexes = list(range(len(group)))
    for _ in range(_TRIES):
        part = [group[index] for index in indexes]
        if part[0].policy is not None:
            rows = await insert_by_policy(call, part, first, awaited, cancelled)
        else:
            flow: Sequence[list[object]] = _NO_FLOW
            if awaited or any(map(_get_flow, part)):
                flow = _flow_columns(part, awaited, first[0])
                part = [structs.replace(new, due=at(NEVER_MS)) if new.after else new for new in part]
            rows = await call("enqueue_jobs", (*first, *new_job_columns(part), *flow))
        again = []
        for number, id, how in rows:
            _check_done(how)
            if how == "again":
                again.append(indexes[number - 1])
            else:
                receipts[indexes[number - 1]] = Receipt(id, how)
        if not again:
            return receipts
        indexes = again
    raise StoreBusy(
        f"could not resolve a unique-key conflict after {_TRIES} attempts: the conflicting job kept disappearing"
    )


async def _insert_recurring(call: CallFunction, group: Sequence[NewJob], first: FirstParameters) -> list[Receipt]:
    (new,) = group
    assert new.recurrence is not None
    rule = encoded_rule(new.recurrence)
    ((id, how),) = await call("enqueue_recurring", (*first, *new_job_row(new), rule, new.keeps_due))
    _check_done(how)
    return [Receipt(id, how)]


def _check_done(how: str) -> None:
    if how == "feed":
        raise FeedIsOn
    if how == "elsewhere":
        raise WrongSchema


def _flow_columns(new_jobs: Sequence[NewJob], awaited: Set[str], now_ms: int | None) -> Sequence[list[object]]:
    """The columns of jobs in flows."""
    rows = []
    for new in new_jobs:
        held = None if not new.after or now_ms is None else _encode(new_hold(new.due, now_ms)).decode()
        rows.append((held, len(new.after) or None, new.flow, new.id in awaited))
    return [list(column) for column in zip(*rows, strict=True)]


_NO_FLOW: list[list[object]] = [[], [], [], []]

_FIRST_TYPES = ("bigint", "boolean", "boolean", "bigint")
_ROW_TYPES = ("text", "text", "text", "integer", "bigint", "bigint", "text", "text", "text", "text")
_COLUMN_TYPES = (*_ROW_TYPES, "text", "integer", "text", "boolean")
#: The functions that enqueue, and the types of their parameters, for drivers that do not infer types.
TYPES: dict[str, tuple[str, ...]] = {
    "now_ms": (),
    "enqueue_jobs": (*_FIRST_TYPES, *(f"{one}[]" for one in _COLUMN_TYPES)),
    "enqueue_edges": ("bigint", "boolean", "text[]", "text[]", "integer[]", "text[]", "text[]"),
    "enqueue_recurring": (*_FIRST_TYPES, *_ROW_TYPES, "text", "boolean"),
    "key_owners": ("bigint", "bigint", *["text[]"] * 4),
    "enqueue_by_policy": (*_FIRST_TYPES[:3], *(f"{one}[]" for one in (*_ROW_TYPES, "boolean", *PLAN_TYPES))),
}
