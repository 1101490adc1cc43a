"""Lanes: the verbs configure_lane and lanes, and who looks at a lane when. See sql/lanes.sql.

A call that has changed jobs of lanes fills these after its commit. Exchanges hand slots over, and look at lanes again
with the next exchange (`LoopResources.lanes`). What a process has left undone that ended meanwhile, `heal` finds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from jobmill.core.due import Held, in_lane
from jobmill.core.lanes import changed_lane
from jobmill.core.queue_settings import LaneChange, LaneSettings, Pause, RateLimit
from jobmill.core.values import LANE_LIMIT, Lane
from jobmill.stores.postgres.connection.connector import Connection, transaction
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.read import READ_SECONDS
from jobmill.stores.postgres.statements import LANES_REVIEWED

#: How many lanes are right when a rule for all of them has changed.
MAX_REVIEWED = 1_000
#: How many lanes one call of flush_outbox examines for free slots, and in one transaction.
HEALED = 2_000
HEALED_AT_ONCE = 250

_get_lane = attrgetter("lane")

#: Queue and lane.
LaneKey = tuple[str, str]


class HasLane(Protocol):
    """A new job, a lease or a job to be changed."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def lane(self) -> str | None:
        """Its lane, if it has one."""


def lanes_of(jobs: Collection[HasLane]) -> set[LaneKey]:
    """The lanes of jobs."""
    return {(one.queue, one.lane) for one in jobs if one.lane is not None} if any(map(_get_lane, jobs)) else set()


def lane_columns(held: Held, now_ms: int) -> dict[str, Any]:
    """The columns of a job that its lane holds again."""
    if not in_lane(held) or held.due.at_ms is None:
        return {"slot": None, "joined_ms": None}
    return {"slot": -1 if held.due.at_ms <= now_ms else -2, "joined_ms": held.due.at_ms}


async def fill(context: PostgresContext, lanes: Collection[LaneKey]) -> Sequence[str]:
    """Give free slots of these lanes, and of those that are marked. Return the queues of jobs that got one.

    Never in a transaction of several statements: others wait for it, and it must wait for nothing.
    """
    parameters = (context.clock.given_ms(), [queue for queue, _ in lanes], [lane for _, lane in lanes])
    text = context.statements.call("fill_marked", 3)
    return await context.use(lambda connection: connection.fetchval(text, *parameters)) or ()


async def count_slots(context: PostgresContext, queue: str, lane: str) -> None:
    """Let the next `fill` count the slots of a lane, although no job of it may be ready."""
    parameters = (queue, lane, context.clock.given_ms())
    await context.use(lambda connection: connection.execute(context.statements("count_lane"), *parameters))


async def note_lanes(context: PostgresContext, queues: Iterable[str]) -> None:
    """Note that queues have lanes, outside of the caller's transaction: another caller would wait for that one."""
    missing = {(context.schema_id, queue) for queue in queues} - context.lane_queues
    if missing:
        text = context.statements.call("note_lanes", 1)
        await context.use(lambda connection: connection.execute(text, [queue for _, queue in missing]))
        context.lane_queues |= missing


# ---------------------------------------------------------------------------------------------------- settings


async def configure_lane(context: PostgresContext, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    statements, is_pause = context.statements, change == LaneChange(pause=change.pause)

    async def work(connection: Connection) -> LaneSettings | None:
        row = await connection.fetchrow(statements("lane_settings"), queue, lane)
        before = LaneSettings() if row is None else _settings(*row)
        after = changed_lane(before, change)
        name, columns = ("pause_lane", _columns(after)[-1:]) if is_pause else ("configure_lane", _columns(after))
        parameters = (queue, lane, context.clock.given_ms(), *columns, *_columns(before))
        is_written = await connection.fetchval(statements(name), *parameters)
        return after if is_written else None

    await note_lanes(context, [queue])
    # None: another process has changed them meanwhile.
    while (after := await context.use(work)) is None:
        pass
    await fill(context, [(queue, lane)])
    await _take_back(context, queue)
    context.loops.here().notifications.notify([queue])
    return after


def _columns(settings: LaneSettings) -> tuple[object, ...]:
    rate, pause = settings.rate, settings.pause
    encoded = None if pause is None else msgspec.json.encode(pause).decode()
    return (settings.running, rate and rate.count, rate and rate.per_ms, settings.strict, encoded)


def _settings(
    running: int | None, rate_count: int | None, rate_per_ms: int | None, strict: bool | None, pause: str | None
) -> LaneSettings:
    return LaneSettings(
        running=running,
        rate=None if rate_count is None or rate_per_ms is None else RateLimit(rate_count, rate_per_ms),
        strict=strict,
        pause=None if pause is None else msgspec.json.decode(pause, type=Pause),
    )


async def review(context: PostgresContext, queue: str) -> None:
    """Fill the first lanes of a queue whose rule has changed. Exchanges and flush_outbox do the rest."""
    text = context.statements("review")
    for _ in range(0, MAX_REVIEWED + LANES_REVIEWED, LANES_REVIEWED):
        if not await context.use(lambda connection: connection.fetchval(text, context.clock.given_ms(), queue)):
            break
    await _take_back(context, queue)


async def _take_back(context: PostgresContext, queue: str) -> None:
    """Take slots back where one call was not enough for it: others can write between two calls."""
    text = context.statements("over_lanes")

    async def over(connection: Connection) -> list[Any]:
        return await connection.fetch(text, queue, context.clock.given_ms(), LANES_REVIEWED)

    while found := await context.use(over):
        await fill(context, [(queue, lane) for (lane,) in found])


async def lanes(
    context: PostgresContext, queue: str, names: Sequence[str] | None = None, after: str | None = None, limit: int = 100
) -> list[Lane]:
    text = context.statements("lane_list")
    wanted = None if names is None else list(names)

    async def read(connection: Connection) -> list[Any]:
        async with transaction(connection, "enable_seqscan = off", "enable_bitmapscan = off", "jit = off"):
            return await connection.fetch(text, queue, wanted, after, limit, LANE_LIMIT)

    found = [_lane(queue, *row) for row in await context.use(read, READ_SECONDS)]
    return [one for one in found if one != Lane(queue=queue, name=one.name)]


def _lane(queue: str, name: str, *columns: Any) -> Lane:
    *own, again_ms, running, admitted, ready, later = columns
    return Lane(
        queue=queue,
        name=name,
        settings=_settings(*own),
        running=running,
        admitted=admitted,
        ready=ready,
        later=later,
        limited_until_ms=again_ms,
    )


# ---------------------------------------------------------------------------------------------------- heal


async def heal(context: PostgresContext) -> set[str]:
    """Give free slots that nobody has given: a process ended before it could. Return the queues of jobs that got one.

    A call examines some of the lanes with ready jobs, and the next call continues there.
    """
    given: set[str] = set()
    for (queue,) in await context.use(lambda connection: connection.fetch(context.statements("reviewed_queues"))):
        await review(context, queue)
        given.add(queue)
    if context.healed == ("", ""):
        await context.transact(lambda connection: _tidy(context, connection))
    for _ in range(0, HEALED, HEALED_AT_ONCE):
        ready = await context.transact(lambda connection: _ready_lanes(context, connection))
        given.update(await fill(context, ready))
        context.healed = ("", "") if len(ready) < HEALED_AT_ONCE else ready[-1]
        if len(ready) < HEALED_AT_ONCE:
            break
    return given


async def _tidy(context: PostgresContext, connection: Connection) -> None:
    """Note queues with lanes that are not noted, and delete rows of lanes that say nothing any more."""
    statements = context.statements
    await connection.execute("SET LOCAL enable_seqscan = off")
    if unnoted := [row[0] for row in await connection.fetch(statements("unnoted_lanes"))]:
        await connection.execute(statements.call("note_lanes", 1), unnoted)
    # Last, because it locks lanes: a transaction with such locks must wait for nothing.
    await connection.execute(statements("forget_lanes"), await context.now_ms(connection), HEALED_AT_ONCE)


async def _ready_lanes(context: PostgresContext, connection: Connection) -> list[LaneKey]:
    await connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    rows = await connection.fetch(context.statements("ready_lanes"), *context.healed, HEALED_AT_ONCE)
    return [(row[0], row[1]) for row in rows]
