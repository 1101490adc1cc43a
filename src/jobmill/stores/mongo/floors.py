"""Floors: where in the index there may be jobs that wait, so that a claim need not walk over those that are gone.

A job that was claimed leaves its entry in the index for minutes: MongoDB keeps what snapshots may still want to see.
Each claim begins at the first entry and would walk over all of these: measured, a worker that drains 150,000 jobs falls
from 5,000 a second to 800. So a busy worker remembers, for each name, the first job that waits, and begins there; then
it keeps its 5,000.

A range of the index that is not filled is as dear: to see that it ends, the server walks to the next entry that is
alive. So only those names and priorities are looked at of which more waits than was found. Whatever comes in besides is
found by when it is due, in the index of due times. What is put behind a floor (a job that another gave back, or that
was enqueued for a time past) is found by a look at everything: every second, or as often as costs a twentieth of the
time, and at once where nothing else waits and such a look costs little.

So of a name that is known, whatever waits is at or behind a front, or of a lower priority than all that have one, or
due at `new_from_ms` or later; or it was put behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeGuard

from bson import ObjectId
from msgspec import Struct

from jobmill.stores.mongo.connection import Document
from jobmill.stores.mongo.values import date, ms_of

#: A process that has claimed fewer jobs while such entries last has left next to nothing behind.
FROM_CLAIMS = 2_000
LAST_S = 300.0
#: Others' clocks may be behind by so much, and what they insert may take so long.
MARGIN_MS = 500
#: How often everything is looked at, and how much of the time that may take.
ALL_EVERY_S = 1.0
ALL_SHARE = 20
#: A look that takes longer is not made for each claim that was not filled.
DEAR_S = 0.01
#: While some names are busy, how often is looked for what else came in.
NEW_EVERY_S = 0.1
#: After so many looks of others' jobs a name is looked at for itself: it may have run dry.
MOST_MISSED = 20
#: Of how many priorities of a name more may be known to wait: each is a range of the index that a look has to merge.
MOST_FRONTS = 8
#: After so many looks within one millisecond (thousands of jobs that were enqueued together) a look begins at an id.
LOOKS_OF_ONE_TIME = 20

#: Of so many names, or sets of them, something is remembered.
MOST_NAMES = 500

_NO_ID = ObjectId(bytes(12))

#: As a document has it; None: it has none, and comes last.
Priority: TypeAlias = float | None
Firsts: TypeAlias = dict[Priority, tuple[int, ObjectId]]


class Looked(Struct):
    """When everything was looked at. Times are those of a clock that never goes back."""

    all_at: float = 0.0
    all_took_s: float = 0.0

    @property
    def is_dear(self) -> bool:
        """Whether a look that began at the floor and was not filled has to do."""
        return self.all_took_s > DEAR_S

    def looked_at_all(self, began: float, ended: float) -> None:
        """Everything was looked at."""
        self.all_took_s = ended - began
        self.all_at = ended + max(ALL_EVERY_S, ALL_SHARE * self.all_took_s)


class LeaseFloor(Looked):
    """That of the ended leases of some names of a queue."""

    #: None ended before, as far as is known; None: nothing is known.
    from_ms: int | None = None

    def start(self, at: float) -> int | None:
        """Where to begin."""
        return self.from_ms if at < self.all_at else None

    def found_none(self, now_ms: int) -> None:
        """Nothing had ended by now."""
        self.from_ms = now_ms - MARGIN_MS


class Front(Struct):
    """Where the waiting jobs of one priority begin."""

    #: None is due before, as far as is known; None: nothing is known.
    due_ms: int | None = None
    #: The first of those that are due then; None: any of them may be.
    id: ObjectId | None = None
    looks: int = 0

    @property
    def is_narrow(self) -> bool:
        """Whether only what is due at that very time is looked at, by its ids."""
        return self.id is not None and self.looks >= LOOKS_OF_ONE_TIME

    def range(self, now_ms: int) -> Document:
        """What is due from here on."""
        due = {"$lte": date(now_ms)}
        if self.due_ms is None:
            return {"nextRunAt": due}
        start = date(self.due_ms)
        return (
            {"nextRunAt": start, "_id": {"$gte": self.id}} if self.is_narrow else {"nextRunAt": {"$gte": start, **due}}
        )


class Floor(Looked):
    """That of the waiting jobs of one name in a queue."""

    #: Of these priorities more waits than was found.
    fronts: dict[Priority, Front] = {}
    #: Whether all that waited was found.
    is_dry: bool = False
    #: From which due time on, and when next, is looked for what came in besides.
    new_from_ms: int = 0
    new_at: float = 0.0
    missed: int = 0

    def is_known(self, at: float) -> bool:
        """Whether a look may begin here, and not at the very first."""
        return at < self.all_at and (self.is_dry or bool(self.fronts))

    def ranges(self, now_ms: int) -> list[Document]:
        """Where more waits."""
        return [{"priority": priority, **front.range(now_ms)} for priority, front in list(self.fronts.items())]

    def below(self, now_ms: int) -> list[Document]:
        """Where jobs may wait that come behind those."""
        if not self.fronts or None in self.fronts:
            return []
        due = {"nextRunAt": {"$lte": date(now_ms)}}
        return [{"priority": {"$lt": self._least()}, **due}, {"priority": None, **due}]

    def news(self, now_ms: int) -> Document:
        """What may have come in besides."""
        due = {"nextRunAt": {"$gte": date(self.new_from_ms), "$lte": date(now_ms)}}
        if not self.fronts:
            return due
        before = {"$type": "number"} if None in self.fronts else {"$gt": self._least()}
        return {**due, "priority": {**before, "$nin": list(self.fronts)}}

    def forget(self) -> None:
        """Nothing is known."""
        self.fronts, self.is_dry, self.missed = {}, False, 0

    def found_all(self, found: Iterable[Document], in_hand: Iterable[Document], now_ms: int) -> None:
        """Nothing waits but these, and of those that were in hand some may again."""
        self.forget()
        self.is_dry = True
        self._besides(found, in_hand, now_ms)

    def found_first(self, found: Sequence[Document], in_hand: Sequence[Document], now_ms: int, last: Document) -> None:
        """A look at all jobs of this and other names found these, and was cut there."""
        known, priority = self.fronts, last.get("priority")
        self.forget()
        if _is_priority(priority):
            self.fronts = {priority: known.get(priority, Front())}
            self._raise(priority, now_ms, _firsts([*found, last]), _firsts(in_hand))
        self._besides(found, in_hand, now_ms)

    def found_new(self, found: Iterable[Document], in_hand: Iterable[Document], now_ms: int, at: float) -> None:
        """Nothing came in besides but these."""
        self.new_at = at + NEW_EVERY_S
        self._besides(found, in_hand, now_ms)

    def found_many_new(self, found: Sequence[Document], in_hand: Sequence[Document], now_ms: int) -> None:
        """These came in besides, and more of the last one's priority; without a front that is looked for as before."""
        last = found[-1].get("priority")
        if _is_priority(last) and len(self.fronts) < MOST_FRONTS:
            self.is_dry = False
            self.fronts[last] = Front()
            self._raise(last, now_ms, _firsts(found), _firsts(in_hand))

    def widened(self, last: Document | None) -> bool:
        """Whether a look that was cut there, or was not, went past all of one time that it was narrowed to: then what
        is due later counts as well.
        """
        past = [one for one, front in list(self.fronts.items()) if front.is_narrow and _is_past(one, front, last)]
        for priority in past:
            self.fronts[priority] = Front(self.fronts[priority].due_ms)
        return bool(past)

    def is_seen(self, last: Document | None) -> bool:
        """Whether a look that was cut there, or was not, saw all that has a front."""
        return all(_is_before(priority, last) for priority in self.fronts)

    def passed(self, found: Sequence[Document], in_hand: Sequence[Document], now_ms: int, last: Document) -> None:
        """A look behind the fronts of this and other names found these, and was cut there."""
        there, held = _firsts(found), _firsts(in_hand)
        for priority in list(self.fronts):
            if priority in there or (priority in held and _is_before(priority, last)):
                self._raise(priority, now_ms, there, held)
            elif _is_before(priority, last):
                del self.fronts[priority]
        self.missed = 0 if there else self.missed + 1
        if self.missed > MOST_MISSED:
            self.forget()

    def _raise(self, priority: Priority, now_ms: int, there: Firsts, held: Firsts) -> None:
        recent = (now_ms - MARGIN_MS, _NO_ID)
        due_ms, id = min(recent, there.get(priority, recent), held.get(priority, recent))
        known = self.fronts[priority]
        looks = known.looks + 1 if known.due_ms == due_ms else 0
        self.fronts[priority] = Front(due_ms, None if id == _NO_ID else id, looks)

    def _least(self) -> float:
        return min(one for one in list(self.fronts) if one is not None)

    def _has_front(self, priority: object) -> bool:
        return _is_priority(priority) and priority in self.fronts

    def _besides(self, found: Iterable[Document], in_hand: Iterable[Document], now_ms: int) -> None:
        """Besides what has a front nothing waits but these, and what is yet to come in."""
        some = [one for one in (*found, *in_hand) if not self._has_front(one.get("priority"))]
        dues = [due_ms for one in some if (due_ms := ms_of(one.get("nextRunAt"))) is not None]
        self.new_from_ms = min((now_ms - MARGIN_MS, *dues))


class Floors:
    """Those of a store."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], Floor] = {}
        self._leases: dict[tuple[str, ...], LeaseFloor] = {}
        # What was claimed in this stretch of time, and in the one before.
        self._claims = 0
        self._before = 0
        self._until = 0.0

    def claimed(self, jobs: int, at: float) -> None:
        """So many more were claimed here."""
        self._pass(at)
        self._claims += jobs

    def of(self, queue: str, names: Sequence[str], at: float) -> dict[str, Floor]:
        """The floors of these names; none where none are needed."""
        if not self._are_needed(at):
            return {}
        if len(self._waiting) > MOST_NAMES:
            self._waiting.clear()
        return {name: self._waiting.setdefault((queue, name), Floor()) for name in names}

    def of_leases(self, queue: str, names: Sequence[str], at: float) -> LeaseFloor | None:
        """That of their ended leases; None where none is needed."""
        if not self._are_needed(at):
            return None
        if len(self._leases) > MOST_NAMES:  # names come in many sets where their room is used up now and then
            self._leases.clear()
        return self._leases.setdefault((queue, *names), LeaseFloor())

    def came_in(self, queue: str, name: str, priority: Priority) -> None:
        """A job was enqueued here: the next look finds it."""
        floor = self._waiting.get((queue, name))
        if floor is not None and priority not in floor.fronts:
            floor.new_at = 0.0

    def forget(self) -> None:
        """A job may have been put behind."""
        self._waiting.clear()
        self._leases.clear()

    def _are_needed(self, at: float) -> bool:
        self._pass(at)
        if self._before + self._claims >= FROM_CLAIMS:
            return True
        self.forget()
        return False

    def _pass(self, at: float) -> None:
        if at >= self._until:
            self._before = self._claims if at < self._until + LAST_S else 0
            self._claims, self._until = 0, at + LAST_S


def _firsts(some: Iterable[Document]) -> Firsts:
    """Where the first of each priority stands."""
    firsts: Firsts = {}
    for document in some:
        priority, due_ms, id = document.get("priority"), ms_of(document.get("nextRunAt")), document["_id"]
        if due_ms is not None and _is_priority(priority):
            place = (due_ms, id if isinstance(id, ObjectId) else _NO_ID)
            firsts[priority] = min(place, firsts.get(priority, place))
    return firsts


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_priority(value: object) -> TypeGuard[Priority]:
    """Whether it is one that may have a front: other types, which a foreign program may have written, never have."""
    return value is None or _is_number(value)


def _is_before(priority: Priority, last: Document | None) -> bool:
    """Whether a look that was cut at the last one saw all of a priority."""
    if last is None:
        return True
    until = last.get("priority")
    return priority is not None and (until is None or (_is_number(until) and priority > until))


def _is_past(priority: Priority, front: Front, last: Document | None) -> bool:
    """Whether the last one comes behind all that is due when a front is."""
    if last is None or _is_before(priority, last):
        return True
    return last.get("priority") == priority and ms_of(last.get("nextRunAt")) != front.due_ms
