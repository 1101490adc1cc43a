"""Lanes: who gets a slot, and the verbs configure, configure_lane and lanes.

A file has one writer, so a transaction sees all slots as they are. Every verb notes the lanes that it has changed
(`changed_lanes` of the context), and `fill` gives their free slots to their next jobs, in the same transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from jobmill.core.due import at, lane_fields
from jobmill.core.flows import MAX_RELEASED
from jobmill.core.lanes import (
    LaneLimits,
    LanePosition,
    LaneWindow,
    Moves,
    changed_lane,
    keeps_slot,
    moves,
    pushed_back_fields,
    room,
)
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings
from jobmill.core.values import LANE_LIMIT, Lane, NewJob, QueueChange, QueueSettings
from jobmill.stores.sqlite import queues
from jobmill.stores.sqlite.codec import QueueRow, as_json, held_columns, lane_columns, readable, subject_of
from jobmill.stores.sqlite.context import SqliteContext

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

#: How many lanes one call of flush_outbox examines, and where the search begins: before all queues.
_EXAMINED = 256
FIRST = ("", "")
#: A change of the rule of a queue is applied to this number of lanes in one transaction.
_LANES_AT_ONCE = 1_000
#: At most this number of jobs lose their slots in one transaction. Measured: 14 us a job, and other processes wait.
_TAKEN_BACK = 5_000


class LaneRow(Struct, frozen=True):
    """What is stored of a lane: its settings, the window of its rate, and when the rate allows more jobs."""

    settings: LaneSettings = LaneSettings()
    window: LaneWindow = LaneWindow()
    again_ms: int | None = None


def known_lanes(context: SqliteContext) -> bool:
    """Whether a live job has a lane. The writer remembers it while nobody else writes."""
    if context.has_lanes is None:
        context.has_lanes = bool(context.row("has_lanes")[0])
    return context.has_lanes


def join_lanes(context: SqliteContext, new_jobs: Iterable[NewJob]) -> None:
    """These jobs were inserted: those with a lane may get a slot."""
    for new in new_jobs:
        if new.lane is not None:
            context.has_lanes = True
            context.arrivals.add((new.queue, new.lane))
            _may_give(context, (new.queue, new.lane))


def change_lanes_of(context: SqliteContext, seqs: Sequence[int]) -> None:
    """These jobs have joined their lanes, or have left them."""
    for key in context.rows("lanes_of", (as_json(list(seqs)),)):
        context.changed_lanes[key] = None


def give_up_slots(context: SqliteContext, settled: Iterable[tuple[int, Settlement]]) -> None:
    """These jobs, by seq, have ended their runs: those that wait again join the ends of their lanes."""
    waiting = [seq for seq, done in settled if _frees(context, done)]
    # The settlement has written the due time already, or an update of the recurrence has.
    subjects = context.rows("subjects_of", (as_json(waiting),)) if waiting else ()
    fields = {row[0]: lane_fields(None, at(row[7]), context.now_ms) for row in subjects}
    context.update_jobs([([seq], held_columns(own, context.now_ms)) for seq, own in fields.items()])


def _frees(context: SqliteContext, done: Settlement) -> bool:
    """Note a slot that is free; whether its job waits again and must join its lane."""
    key = (done.lease.queue, done.lease.lane or "")
    if done.state == "waiting":
        if keeps_slot(done, strict=_limits(context, key[0], [key[1]])[key[1]][0].strict):
            # A job that was given back is admitted again: a more urgent one may take its slot.
            context.changed_lanes[key] = None
            return False
        context.changed_lanes[key] = None
        return True
    _may_give(context, key)
    return False


def _may_give(context: SqliteContext, key: tuple[str, str]) -> None:
    """A lane may give one more slot."""
    given = context.changed_lanes.get(key, 0)
    context.changed_lanes[key] = None if given is None else given + 1


# ---------------------------------------------------------------------------------------------------- slots


def fill(context: SqliteContext) -> None:
    """Give the free slots of all lanes that have changed to their next jobs."""
    by_queue: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
    for (queue, lane), given in context.changed_lanes.items():
        by_queue[queue][lane] = given
    context.changed_lanes.clear()
    for queue, lanes in by_queue.items():
        limits = _limits(context, queue, lanes)
        single = {lane for lane, given in lanes.items() if given == 1 and _is_plain(limits[lane][0])}
        if single:
            pairs = [(lane, limits[lane][0].running) for lane in single]
            context.wakes += context.write("hand_over", (queue, as_json(pairs), context.now_ms)) > 0
            single -= _displacing(context, queue, [lane for lane in single if (queue, lane) in context.arrivals])
        for lane in lanes.keys() - single:
            _fill(context, queue, lane, *limits[lane])
    context.arrivals.clear()


def _displacing(context: SqliteContext, queue: str, lanes: Sequence[str]) -> set[str]:
    """Of these lanes, those with a ready job that is more urgent than a job with a slot which has not begun."""
    return {lane for (lane,) in context.rows("displacing", (queue, as_json(lanes)))} if lanes else set()


def _is_plain(limits: LaneLimits) -> bool:
    """Whether a lane has a number of slots and nothing else: a statement for many lanes can give them on."""
    return limits.running is not None and limits.rate is None and not limits.paused


def _fill(context: SqliteContext, queue: str, lane: str, limits: LaneLimits, row: LaneRow) -> None:
    # In a lane without limits all ready jobs get slots, so that nobody counts those that have one. There may be many.
    has_limit = limits.paused or limits.running is not None or limits.rate is not None
    admitted, running = context.row("lane_slots", (queue, lane)) if has_limit else (0, 0)
    ready = [_position(one) for one in context.rows("lane_ready", (queue, lane, _most(limits, admitted, running)))]

    def last_admitted(count: int) -> list[LanePosition]:
        count = min(count, max(0, _TAKEN_BACK - context.taken_back))
        return [_position(one) for one in context.rows("lane_admitted", (queue, lane, count))]

    decided = moves(limits, ready, admitted, running, last_admitted, row.window, context.now_ms)
    _push_back(context, decided)
    if decided.admit:
        context.write("admit", (as_json([position[2] for position in decided.admit]), context.now_ms))
        context.wakes += 1
    context.taken_back += len(decided.push_back)
    is_over = (room(limits, admitted, running) or 0) + len(decided.push_back) < 0
    again_ms = context.now_ms if is_over or len(decided.admit) == MAX_RELEASED else decided.again_ms
    if (decided.window, again_ms) != (row.window, row.again_ms):
        _write(context, queue, lane, structs.replace(row, window=decided.window, again_ms=again_ms))


def _most(limits: LaneLimits, admitted: int, running: int) -> int:
    """How many ready jobs a decision needs: those that may get a slot, and those that may displace admitted jobs."""
    if limits.running is None:
        return MAX_RELEASED if limits.rate is None else min(MAX_RELEASED, limits.rate.count + admitted + 1)
    return min(MAX_RELEASED, max(limits.running - running, 0) + (limits.rate is not None))


def _push_back(context: SqliteContext, decided: Moves) -> None:
    now_ms = context.now_ms
    rows = [([seq], pushed_back_fields(joined_ms, now_ms)) for _, joined_ms, seq, _ in decided.push_back]
    if rows:
        context.update_jobs([(seqs, held_columns(fields, now_ms)) for seqs, fields in rows])


def _position(row: tuple[int, int, int]) -> LanePosition:
    return (*row, "")


def advance(context: SqliteContext, claimed_queues: Sequence[str]) -> None:
    """Before a claim: jobs that have become due stand in their lanes, and lanes whose rate allows more give slots."""
    for queue in claimed_queues:
        later_ms, again_ms = lane_times(context, queue)
        if later_ms is not None and later_ms <= context.now_ms:
            due = context.rows("lane_due", (queue, context.now_ms, MAX_RELEASED))
            context.write("make_ready", (as_json([seq for seq, _ in due]),))
            context.changed_lanes |= {(queue, lane): None for _, lane in due}
        if again_ms is not None and again_ms <= context.now_ms:
            lanes = context.rows("lanes_again", (queue, context.now_ms, _LANES_AT_ONCE))
            context.changed_lanes |= {(queue, lane): None for (lane,) in lanes}
        row = queues.known_queues(context).get(queue)
        if row is not None and row.after_lane is not None:
            _apply_rule(context, queue, row)
    if context.changed_lanes:
        fill(context)


def lane_times(context: SqliteContext, queue: str) -> tuple[int | None, int | None]:
    """When lanes of a queue may give slots without a settlement: a job becomes due, or a rate allows more."""
    later_ms, again_ms = context.row("lane_times", (queue,))
    return later_ms, again_ms


def find_free(context: SqliteContext, after: tuple[str, str]) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Lanes with a free slot and a ready job, among the next ones after this queue and lane; and where to continue.

    A process of an older version does not give slots on when it ends a job, and neither does a person with SQL.
    """
    rows: list[tuple[str, str]] = context.rows("lane_pairs", (*after, _EXAMINED))
    free = [(queue, lane) for queue, lane in rows if _is_free(context, queue, lane)]
    return free, rows[-1] if len(rows) == _EXAMINED else FIRST


def _is_free(context: SqliteContext, queue: str, lane: str) -> bool:
    limits, row = _limits(context, queue, [lane])[lane]
    if row.again_ms is not None or not context.rows("lane_ready", (queue, lane, 1)):
        return False
    if limits.paused or limits.running is None:
        return not limits.paused
    return room(limits, *context.row("lane_slots", (queue, lane))) != 0


def fill_free(context: SqliteContext, found: Iterable[tuple[str, str]]) -> int:
    """Give the free slots of these lanes to their next jobs; how many lanes have got something."""
    free = [key for key in found if _is_free(context, *key)]
    context.changed_lanes |= dict.fromkeys(free)
    fill(context)
    return len(free)


def place_in_lanes(context: SqliteContext, seqs: Sequence[int]) -> None:
    """Put waiting jobs where they belong in their lanes, by what holds them."""
    for row in context.rows("subjects_of", (as_json(list(seqs)),)):
        held = subject_of(row).held
        context.update_job(row[0], lane_columns(held, context.now_ms))
    change_lanes_of(context, seqs)


# ---------------------------------------------------------------------------------------------------- settings


def configure(context: SqliteContext, queue: str, change: QueueChange) -> QueueSettings:
    """Change what is set for a queue. A new rule for its lanes applies to the first lanes at once."""
    before = queues.known_queues(context).get(queue, QueueRow()).settings.lanes
    settings = queues.configure(context, queue, change)
    if settings.lanes != before:
        _apply_rule(context, queue, structs.replace(queues.known_queues(context)[queue], after_lane=""))
    return settings


def _apply_rule(context: SqliteContext, queue: str, row: QueueRow) -> None:
    """Apply the rule of a queue to the next lanes to which it is not applied yet."""
    found = [lane for (lane,) in context.rows("lane_names", (queue, row.after_lane, _LANES_AT_ONCE))]
    context.changed_lanes |= {(queue, lane): None for lane in found}
    after_lane = found[-1] if len(found) == _LANES_AT_ONCE else None
    rule: LaneRule | None = row.settings.lanes
    context.write("write_lane_rule", (queue, None if rule is None else as_json(rule), after_lane))
    queues.known_queues(context)[queue] = structs.replace(row, after_lane=after_lane)


def configure_lane(context: SqliteContext, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    """Change what is set for a lane."""
    row = _rows(context, queue, [lane]).get(lane, LaneRow())
    row = structs.replace(row, settings=changed_lane(row.settings, change))
    _write(context, queue, lane, row)
    context.changed_lanes[queue, lane] = None
    context.wakes += 1
    return row.settings


def take_back(context: SqliteContext, queue: str) -> bool:
    """Take slots back where one transaction was not enough for it; whether there were such lanes."""
    lanes = [lane for (lane,) in context.rows("lanes_again", (queue, context.now_ms, _LANES_AT_ONCE))]
    limits = _limits(context, queue, lanes)
    over = [one for one in lanes if (room(limits[one][0], *context.row("lane_slots", (queue, one))) or 0) < 0]
    context.changed_lanes |= {(queue, lane): None for lane in over}
    return bool(over)


def _limits(context: SqliteContext, queue: str, lanes: Iterable[str]) -> Mapping[str, tuple[LaneLimits, LaneRow]]:
    """The limits of these lanes, and what is stored of them."""
    rule = queues.known_queues(context).get(queue, QueueRow()).settings.lanes
    rows = _rows(context, queue, list(lanes))
    plain = (LaneLimits.of(rule, None), LaneRow())
    return {lane: (LaneLimits.of(rule, rows[lane].settings), rows[lane]) if lane in rows else plain for lane in lanes}


def _rows(context: SqliteContext, queue: str, lanes: Sequence[str]) -> dict[str, LaneRow]:
    found = context.rows("lane_rows", (queue, as_json(lanes)))
    return {
        lane: LaneRow(readable(settings, LaneSettings) or LaneSettings(), LaneWindow(ends_ms, used), again_ms)
        for lane, settings, ends_ms, used, again_ms in found
    }


def _write(context: SqliteContext, queue: str, lane: str, row: LaneRow) -> None:
    window = row.window
    context.write("write_lane", (queue, lane, as_json(row.settings), window.ends_ms, window.used, row.again_ms))


# ---------------------------------------------------------------------------------------------------- read


def lanes(
    context: SqliteContext, queue: str, names: Sequence[str] | None = None, after: str | None = None, limit: int = 100
) -> list[Lane]:
    """The lanes of a queue, by name."""
    if names is not None:
        return _listed(context, queue, sorted({name for name in names if after is None or name > after}))[:limit]
    found: list[Lane] = []
    last: str | None = after or ""
    # A lane whose jobs are all held by others as well is left out: there may be many.
    while last is not None and len(found) < limit:
        names, last = _next_names(context, queue, last, limit)
        found += _listed(context, queue, names)
    return found[:limit]


def _next_names(context: SqliteContext, queue: str, after: str, limit: int) -> tuple[list[str], str | None]:
    """The next lanes with live jobs or settings, by name; and where to continue, None at the end."""
    parts = [[lane for (lane,) in context.rows(name, (queue, after, limit))] for name in ("lane_names", "known_lanes")]
    # What is behind the end of a full part is not known yet.
    last = min((part[-1] for part in parts if len(part) == limit), default=None)
    return sorted({lane for part in parts for lane in part if last is None or lane <= last}), last


def _listed(context: SqliteContext, queue: str, names: Sequence[str]) -> list[Lane]:
    rows = _rows(context, queue, names)
    found = (_lane(context, queue, name, rows.get(name, LaneRow())) for name in names)
    return [one for one in found if one != Lane(queue=queue, name=one.name)]


def _lane(context: SqliteContext, queue: str, name: str, row: LaneRow) -> Lane:
    running, admitted, ready, later = context.row("lane_counts", (queue, name, LANE_LIMIT))
    return Lane(
        queue=queue,
        name=name,
        settings=row.settings,
        running=running,
        admitted=admitted,
        ready=ready,
        later=later,
        limited_until_ms=row.again_ms,
    )
