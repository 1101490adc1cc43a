"""The hot verb: settle what is finished, then claim what is free."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence

from msgspec import Struct, field
from pymongo.errors import PyMongoError

from jobmill.core.events import Event, settlement_events
from jobmill.core.values import Broken, Claim, Claimed, Exchanged, Settled, Settlement
from jobmill.stores.mongo.claim import Turn
from jobmill.stores.mongo.feed import UNKNOWN, Known
from jobmill.stores.mongo.finding import NOTHING, Found
from jobmill.stores.mongo.connection import is_away, told_apart
from jobmill.stores.mongo.settle import Also
from jobmill.stores.mongo.waiting import Searched

log = logging.getLogger("jobmill")


class _Got(Struct):
    """What was claimed, what there is to tell, and when there may be more."""

    claimed: list[Claimed | Broken] = []
    told: list[Event] = []
    dues: list[int] = []
    is_put_back: bool = False


class _First(Struct):
    """The claim of the first queue: what was found, and what takes it where that goes into the bulk that settles."""

    turn: Turn | None = None
    found: Found = NOTHING
    also: Also = field(default_factory=Also)

    def free(self) -> Awaitable[int | None]:
        """Go on with what was found, or with what was taken of it by now."""
        assert self.turn is not None
        return self.turn.free(None, None, self.found, self.also)


class Exchanges(Searched):
    """exchange."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """See the port. What was done before the server went away is told, and the next call says that it is away."""
        now_ms = self.now()
        if claim is not None:
            self._begins(claim)
        got = _Got()
        with told_apart(self._place):
            first, known = await self._look(settlements, claim, now_ms)
            with self._taking(first.found.all):
                settled = await self._settle(settlements, now_ms, first.also)
                try:
                    if claim is not None:
                        done = {one.lease.id for one, how in zip(settlements, settled, strict=True) if how == "done"}
                        got.is_put_back = any(_is_due(one, now_ms) for one in settlements)
                        await self._claim(claim, done, known, now_ms, got, first)
                    if any(one.settings.feed for one in known.values()):
                        await self._tell([*_told(settlements, settled, now_ms), *got.told], known)
                except PyMongoError as error:
                    if not is_away(error) or not (settlements or got.claimed):
                        raise
                    log.debug("MongoDB went away during an exchange: %s", error)
                    got.dues.append(now_ms)
        next_due_ms = min(got.dues, default=None)
        return Exchanged(settled=settled, claimed=got.claimed, next_due_ms=next_due_ms, now_ms=now_ms)

    def _begins(self, claim: Claim) -> None:
        """A claim is made, of names that somebody here works."""
        self._names.update(claim.names)

    async def _look(
        self, settlements: Sequence[Settlement], claim: Claim | None, now_ms: int
    ) -> tuple[_First, dict[str, Known]]:
        """What is set for the queues, and what may be claimed of the first, which the bulk that settles is to take.

        So a busy worker's exchange is two round trips and one write that waits for a majority, not five and two.
        """
        queues = {one.lease.queue for one in settlements} | set(claim.queues if claim else ())
        if claim is None:
            return _First(), await self._known(queues)
        ids = {one.lease.id for one in settlements}
        turn = Turn(self, claim.queues[0], claim, claim.names, claim.n, ids, now_ms)
        found, known = await turn.look(queues)
        said = known.get(claim.queues[0], UNKNOWN)
        if said.settings.paused or said.is_limited:
            return _First(), known
        turn.is_told = said.settings.feed
        return _First(turn, found, Also(turn.writes(found), len(found)) if settlements else Also()), known

    async def _claim(
        self, claim: Claim, not_these: set[str], known: dict[str, Known], now_ms: int, got: _Got, first: _First
    ) -> None:
        """Queue after queue."""
        rooms = {name: room for name, room in claim.names.items() if room > 0}
        for queue in claim.queues:
            said = known.get(queue, UNKNOWN)
            if said.settings.paused or not rooms:
                continue
            if first.turn is not None and queue == claim.queues[0]:
                turn = first.turn
                turn.settled(not_these)
                free: Awaitable[int | None] = first.free()
            else:
                turn = Turn(self, queue, claim, rooms, claim.n - len(got.claimed), not_these, now_ms)
                turn.is_told = said.settings.feed
                free = turn.limited() if said.is_limited else turn.free(None, None)
            turn.is_put_back = got.is_put_back
            try:
                due_ms = await free
            finally:
                got.claimed += turn.claimed
                got.told += turn.told
            if due_ms is not None:
                got.dues.append(due_ms)
            for one in turn.claimed:
                rooms[one.lease.name] -= 1


def _is_due(settlement: Settlement, now_ms: int) -> bool:
    """Whether it puts its job back to be claimed at once."""
    due = settlement.due
    return settlement.state == "waiting" and (due is None or due.resolve(now_ms) <= now_ms)


def _told(settlements: Sequence[Settlement], settled: Sequence[Settled], now_ms: int) -> list[Event]:
    """What is told of settlements that were done."""
    done = [one for one, answer in zip(settlements, settled, strict=True) if answer == "done"]
    return [event for one in done for event in settlement_events(one, now_ms)]
