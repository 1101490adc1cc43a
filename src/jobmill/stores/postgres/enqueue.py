"""The verb enqueue: what is sent, and the receipts. Transactions of callers use it too: see within.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from operator import attrgetter
from random import random
from typing import Any

import asyncpg
import msgspec
from msgspec import structs

from jobmill.core.changes import new_hold
from jobmill.core.due import NEVER_MS
from jobmill.core.events import Event, enqueued_events
from jobmill.core.values import NewJob, Receipt, at
from jobmill.errors import StoreBusy
from jobmill.store import WouldWait
from jobmill.stores.postgres.codec import encoded_rule, new_job_columns, new_job_row
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.connection.lock_limit import lock_limited
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_and_learn
from jobmill.stores.postgres.flows import add_new_edges, awaited_by
from jobmill.stores.postgres.lanes import fill, lanes_of
from jobmill.stores.postgres.unique_policy import PLAN_TYPES, insert_by_policy, runs_of_policies

_encode = msgspec.json.Encoder().encode

#: Calls a function of the schema with these parameters, and returns its rows.
CallFunction = Callable[[str, Sequence[object]], Awaitable[Sequence[Iterable[Any]]]]

#: The first parameters of the functions that enqueue: the time, where the store was given a clock; whether the caller
#: adds the events (FeedIsOn otherwise); whether sleepers are woken by the commit of the caller's own transaction; and
#: the id of the schema, if another one is to be refused (WrongSchema).
FirstParameters = tuple[int | None, bool, bool, int | None]

_get_after, _get_flow, _get_policy = attrgetter("after"), attrgetter("flow"), attrgetter("policy")
_get_key, _get_lane = attrgetter("unique_key"), attrgetter("lane")

# A unique key's owner disappears each time that we try to read it: more often than this is no coincidence.
_TRIES = 50
#: After this number, each attempt waits longer. Seen without it: 20 attempts failed beside threads on a busy machine.
_AT_ONCE = 3
# How long a call waits for a transaction that holds one of its unique keys: at first, like a commit of another process;
# each time that it tries again, on one of a few connections; and in all.
SHORT_LOCK_MS = 50
_LONG_LOCK_MS = 1_000
KEY_SECONDS = 10.0
_KEYS_SHOWN = 3
# Payloads in one statement: PostgreSQL accepts no more than 1 GB.
MAX_BYTES = 128 * 1024 * 1024

#: By the ids of new jobs: the events of the jobs that were cancelled for them.
CancelEvents = dict[str, Sequence[Event]]


class FeedIsOn(Exception):
    """Nothing was done: the feed of a queue is on, and its events must be added in the same transaction."""


class WrongSchema(Exception):
    """Nothing was done: the schema is not the one that was meant."""


async def enqueue(context: PostgresContext, new_jobs: Sequence[NewJob], lock_ms: int | None = None) -> list[Receipt]:
    """See the port. With `lock_ms`, WouldWait is raised where a transaction holds a key for longer."""
    if not new_jobs:
        return []
    if lock_ms is None and any(map(_get_key, new_jobs)):
        return await _enqueue_keyed(context, new_jobs)
    loop, at_ms = context.loops.here(), context.clock.given_ms()
    queues = {new.queue for new in new_jobs}
    groups, lanes = grouped(new_jobs), lanes_of(new_jobs)
    receipts: list[Receipt] = []
    looks: list[str] = []

    async def work(connection: Connection) -> list[Receipt]:
        call: CallFunction = partial(_call, context, lock_limited(connection, lock_ms))
        if lanes or groups[0][0].policy or groups[0][0].recurrence:  # a job that takes over may have a lane
            call = partial(_noticing, call, looks)
        return await insert(call, groups, (at_ms, False, False, None), {})

    if len(groups) == 1 and loop.feeds_on.isdisjoint(queues) and not has_edges(new_jobs):
        try:
            receipts = await context.use(work)
        except FeedIsOn:
            loop.feeds_on |= queues
    if not receipts:
        receipts = await context.transact(lambda connection: enqueue_on(context, connection, new_jobs, lock_ms=lock_ms))
        looks += [queue for queue, _ in lanes]
    if looks:
        queues.update(await fill(context, lanes))
    loop.notifications.notify(queues)
    return receipts


async def _noticing(
    call: CallFunction, looks: list[str], function: str, parameters: Sequence[Any]
) -> Sequence[Iterable[Any]]:
    """Call a function, and note whether lanes must be filled again after the commit."""
    rows = [tuple(row) for row in await call(function, parameters)]
    looks += [function for row in rows if row[-1] == "look"]
    return [row for row in rows if row[-1] != "look"]


async def enqueue_shared(context: PostgresContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    return await enqueue(context, new_jobs, SHORT_LOCK_MS)


async def _enqueue_keyed(context: PostgresContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Try again while a transaction of somebody else holds one of the keys."""
    with contextlib.suppress(WouldWait):
        return await enqueue(context, new_jobs, SHORT_LOCK_MS)
    lock_waits = context.loops.here().lock_waits
    until = asyncio.get_running_loop().time() + KEY_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(until):
                # Two calls with the same keys in different orders wait for each other: not a second time.
                await asyncio.sleep(random() * SHORT_LOCK_MS / 1_000)
                await lock_waits.acquire()
        except TimeoutError as error:
            raise StoreBusy(_held(new_jobs)) from error
        try:
            return await enqueue(context, new_jobs, _LONG_LOCK_MS)
        except WouldWait:
            continue
        finally:
            lock_waits.release()


def _held(new_jobs: Sequence[NewJob]) -> str:
    """That a transaction holds one of the keys of these jobs."""
    keys = list({f"{new.unique_key!r} of {new.name!r}": None for new in new_jobs if new.unique_key is not None})
    which = "the unique key" if len(keys) == 1 else f"one of {len(keys)} unique keys:"
    listed = ", ".join(keys[:_KEYS_SHOWN]) + (", …" if len(keys) > _KEYS_SHOWN else "")
    return (
        f"another transaction has held {which} {listed} for {KEY_SECONDS:g} s, and has not ended; nothing was stored: "
        "enqueue again when that transaction has ended"
    )


def has_edges(new_jobs: Sequence[NewJob]) -> bool:
    """Whether one of these jobs waits for others."""
    return any(map(_get_after, new_jobs))


async def enqueue_on(
    context: PostgresContext,
    connection: Connection,
    new_jobs: Sequence[NewJob],
    now_ms: int | None = None,
    lock_ms: int | None = None,
) -> list[Receipt]:
    """Enqueue in a transaction: several statements, events, and edges. The caller fills lanes after its commit."""
    call = partial(_call, context, lock_limited(connection, lock_ms))
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
) -> Sequence[asyncpg.Record]:
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
    for attempt in range(_TRIES):
        if attempt > _AT_ONCE:  # others that cancel each other's jobs must come to their end
            await asyncio.sleep(attempt / 1000)
        part = [group[index] for index in indexes]
        if part[0].policy is not None:
            rows = await insert_by_policy(call, part, first, awaited, cancelled)
        else:
            flow: Sequence[list[object]] = _NO_FLOW
            if awaited or any(map(_get_flow, part)) or any(map(_get_lane, part)):
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
    ((id, how),) = await call("enqueue_recurring", (*first, *new_job_row(new), rule, new.keeps_due, new.lane))
    _check_done(how)
    return [Receipt(id, how)]


def _check_done(how: str) -> None:
    if how == "feed":
        raise FeedIsOn
    if how == "elsewhere":
        raise WrongSchema


def _flow_columns(new_jobs: Sequence[NewJob], awaited: Set[str], now_ms: int | None) -> Sequence[list[object]]:
    """The columns of jobs in flows or lanes."""
    rows = []
    for new in new_jobs:
        held = None if not new.after or now_ms is None else _encode(new_hold(new.due, now_ms, new.lane)).decode()
        rows.append((held, len(new.after) or None, new.flow, new.id in awaited, new.lane))
    columns = [list(column) for column in zip(*rows, strict=True)]
    return [*columns[:-1], columns[-1] if any(columns[-1]) else []]


_NO_FLOW: list[list[object]] = [[], [], [], [], []]

# The id of a schema includes that of its database: subtract the one of the database that the connection leads to.
_SCHEMA_ID = "bigint - {database_id}"
_FIRST_TYPES = ("bigint", "boolean", "boolean", _SCHEMA_ID)
_ROW_TYPES = ("text", "text", "text", "integer", "bigint", "bigint", "text", "text", "text", "text")
_COLUMN_TYPES = (*_ROW_TYPES, "text", "integer", "text", "boolean", "text")
#: The functions that enqueue, and the types of their parameters, for drivers that do not infer types.
TYPES: dict[str, tuple[str, ...]] = {
    "now_ms": (),
    "enqueue_jobs": (*_FIRST_TYPES, *(f"{one}[]" for one in _COLUMN_TYPES)),
    "enqueue_edges": ("bigint", "boolean", "text[]", "text[]", "integer[]", "text[]", "text[]"),
    "enqueue_recurring": (*_FIRST_TYPES, *_ROW_TYPES, "text", "boolean", "text"),
    "key_owners": ("bigint", _SCHEMA_ID, *["text[]"] * 4),
    "enqueue_by_policy": (*_FIRST_TYPES[:3], *(f"{one}[]" for one in (*_ROW_TYPES, "boolean", *PLAN_TYPES, "text"))),
}
