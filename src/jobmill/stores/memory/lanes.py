"""Lanes: who gets a slot, and what the verb lanes reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from jobmill.core.flows import MAX_RELEASED
from jobmill.core.lanes import LanePosition, admitted_fields, moves, pushed_back_fields
from jobmill.core.values import LANE_LIMIT, Lane
from jobmill.stores.common.whole_jobs import earliest
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.queues import LaneState, lane_limits


def fill(context: MemoryContext) -> None:
    """Give the free slots of all lanes that have changed to their next jobs."""
    for queue, lane in list(context.jobs.changed_lanes):
        _fill(context, queue, lane)
    context.jobs.changed_lanes.clear()


def _fill(context: MemoryContext, queue: str, lane: str) -> None:
    jobs, now_ms = context.jobs.lanes[queue, lane], context.now_ms
    state = context.lanes.get((queue, lane), LaneState())
    limits, ready = lane_limits(context, queue, lane), jobs.ready.first(MAX_RELEASED)

    def last_admitted(count: int) -> list[LanePosition]:
        return list(islice(jobs.admitted.between(descending=True), count))

    decided = moves(limits, ready, jobs.admitted.count(), jobs.running, last_admitted, state.window, now_ms)
    for position in decided.push_back:
        _write(context, position, **pushed_back_fields(position[1], now_ms))
    for position in decided.admit:
        _write(context, position, **admitted_fields(now_ms))
    context.wakes = context.wakes or bool(decided.admit)
    state.window = decided.window
    _look_again(context, queue, lane, state, now_ms if len(decided.admit) == MAX_RELEASED else decided.again_ms)
    if state != LaneState():
        context.lanes[queue, lane] = state


def _look_again(context: MemoryContext, queue: str, lane: str, state: LaneState, again_ms: int | None) -> None:
    if state.again_ms is not None:
        context.again[queue].remove((state.again_ms, lane))
    if again_ms is not None:
        context.again[queue].add((again_ms, lane))
    state.again_ms = again_ms


def _write(context: MemoryContext, position: LanePosition, **fields: object) -> None:
    context.jobs.write(context.jobs.by_id[position[-1]], **fields)


def advance(context: MemoryContext) -> None:
    """Before a claim: jobs that have become due stand in their lanes, and lanes whose rate allows more give slots."""
    for later in context.jobs.later.values():
        for *_, id in list(later.between(high=(context.now_ms + 1,))):
            context.jobs.write(context.jobs.by_id[id], updated_ms=context.now_ms)
    for queue, again in context.again.items():
        context.jobs.changed_lanes.update((queue, lane) for _, lane in again.between(high=(context.now_ms + 1,)))
    fill(context)


def next_ms(context: MemoryContext, queue: str) -> int | None:
    """When a lane of a queue may give a slot without a settlement: a job becomes due, or a rate allows more."""
    later, again = context.jobs.later[queue].first(1), context.again[queue].first(1)
    return earliest(*[one[0] for one in later], *[one[0] for one in again])


def lanes(
    context: MemoryContext, queue: str, names: Sequence[str] | None = None, after: str | None = None, limit: int = 100
) -> list[Lane]:
    """The lanes of a queue, by name."""
    known = {lane for owner, lane in {*context.jobs.lanes, *context.lanes} if owner == queue}
    wanted = known if names is None else known.intersection(names)
    found = [_lane(context, queue, name) for name in sorted(wanted) if after is None or name > after]
    return [one for one in found if one != Lane(queue=queue, name=one.name)][:limit]


def _lane(context: MemoryContext, queue: str, name: str) -> Lane:
    jobs, state = context.jobs.lanes.get((queue, name)), context.lanes.get((queue, name), LaneState())
    counts = {} if jobs is None else {kind: getattr(jobs, kind).count() for kind in ("admitted", "ready", "later")}
    running = 0 if jobs is None else jobs.running
    return Lane(
        queue=queue,
        name=name,
        settings=state.settings,
        running=min(running, LANE_LIMIT),
        **{kind: min(count, LANE_LIMIT) for kind, count in counts.items()},
        limited_until_ms=state.again_ms,
    )
