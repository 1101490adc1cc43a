"""The hot verb: settle, then claim, one script call a queue; and what holds leases in between."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal, cast

from jobmill.core.events import settlement_events
from jobmill.core.values import Broken, Claim, Claimed, Exchanged, Lease, Refused, Report, Settled, Settlement
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.redis import scripts
from jobmill.stores.redis.circuit_breaker import Trouble, Troubles
from jobmill.stores.redis.codec import SETTLED_PLAINLY, Unreadable, claimed_job, fields
from jobmill.stores.redis.context import MOST_A_CALL, text
from jobmill.stores.redis.feed import Feeds
from jobmill.stores.redis.ids import port_id
from jobmill.stores.redis.recovery import Scans
from jobmill.stores.redis.settle import Handed, fitting, local, released, reported
from jobmill.stores.redis.wake import Wakes

log = logging.getLogger("jobmill")

# A handler with a concurrency of its own and a long line: after so many jobs looked at in vain, few are for a while.
IN_VAIN = 100
LOOK_AT = 20
LOOK_AGAIN_MS = 1_000

_SETTLED: dict[bytes, Literal["done", "lost"]] = {b"done": "done", b"lost": "lost"}


class Exchanges(Wakes, Feeds):
    """exchange, extend and report."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scans = Scans()
        # By queue and names: when many jobs that this worker cannot have were last looked through for nothing.
        self._looked_in_vain: dict[tuple[str, frozenset[str]], int] = {}
        self._troubles = Troubles()

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """See the port. Each queue is a step of its own; first what another worker left behind, then what waits."""
        settled: list[Settled | None] = [None] * len(settlements)
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for place, settlement in enumerate(settlements):
            by_queue[settlement.lease.queue].append(place)
        claiming = _Claiming(claim, {local(one.lease) for one in settlements}) if claim is not None else None
        queues = dict.fromkeys([*(claim.queues if claim is not None else ()), *by_queue])
        now_ms = self.now()
        tried = self._troubles.spare(queues, by_queue, now_ms)
        found: dict[str, Trouble] = {}
        for queue in tried:
            wanted = claiming if claim is not None and queue in claim.queues else None
            places = by_queue.get(queue, [])
            try:
                self._place.check_queue(queue)
                if wanted is not None:
                    self._works(queue, wanted.claim.worker)
                    await self._recover(queue, wanted, now_ms)
                await self._exchange_queue(queue, settlements, places, settled, wanted, now_ms)
            except (StoreError, InvalidValue) as error:
                found[queue] = error
                if any(settled[place] is None for place in places) or (len(found) == len(tried) and not claiming):
                    await self._give_back(claiming, now_ms)
                    raise
        if claiming is None:
            return Exchanged(settled=_all(settled), claimed=[], next_due_ms=None, now_ms=now_ms)
        await self._conclude(claiming, tried, found, now_ms)
        return Exchanged(
            settled=_all(settled), claimed=claiming.claimed, next_due_ms=claiming.next_due_ms, now_ms=now_ms
        )

    async def _conclude(self, claiming: _Claiming, tried: list[str], found: dict[str, Trouble], now_ms: int) -> None:
        """A claim has been through its queues. Trouble with some of them is raised only if nothing else came of it."""
        if len(found) == len(tried) and not claiming.claimed:
            raise next(iter(found.values()))
        self._troubles.note(tried, found, now_ms)
        if (again_ms := self._troubles.next_try_ms(claiming.claim.queues)) is not None:
            claiming.due(again_ms)
        if claiming.no_text:
            await self._fail_no_text(claiming.no_text, now_ms)

    async def _give_back(self, claiming: _Claiming | None, now_ms: int) -> None:
        """Nobody will hear of what was claimed before the call failed: it need not wait for the end of its lease."""
        by_queue: defaultdict[str, list[Settlement]] = defaultdict(list)
        for one in claiming.claimed if claiming is not None else ():
            by_queue[one.lease.queue].append(released(one))
        for queue, own in by_queue.items():
            with contextlib.suppress(StoreError):
                await self._exchange_queue(queue, own, list(range(len(own))), [None] * len(own), None, now_ms)

    async def _exchange_queue(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        places: list[int],
        settled: list[Settled | None],
        wanted: _Claiming | None,
        now_ms: int,
    ) -> None:
        """As many calls as bounds ask for; the last of the settlements goes with the first claim."""
        told = self._feeds.get(queue, False)
        skip = 0
        while True:
            most = fitting(settlements, places)
            some, places = places[:most], places[most:]
            handed = Handed([settlements[place] for place in some], now_ms, told)
            claims = wanted is not None and not places
            n = min(MOST_A_CALL, wanted.n) if wanted is not None and claims else 0
            request = wanted.request(n, skip, self._look(queue, wanted, now_ms)) if wanted and claims else None
            not_these = wanted.not_these if wanted is not None and claims and len(wanted.not_these) > len(some) else ()
            plain, others, taken, next_due, foreign, feed, skip, in_vain = await self._run(
                scripts.EXCHANGE,
                queue,
                now_ms,
                plain=handed.plain,
                settle=handed.others,
                claim=request,
                not_these=list(not_these),
            )
            codes = handed.in_order(plain, others)
            for place, code in zip(some, codes, strict=True):
                settled[place] = _SETTLED.get(code) or Refused(code.decode())
            if feed and not told:
                await self._tell_late([settlements[place] for place in some], codes, now_ms)
            self._feeds[queue] = told = bool(feed)
            if places:
                continue
            if wanted is None:
                return
            wanted.take(queue, taken, now_ms)
            self._scans.leased(queue, now_ms + wanted.claim.lease_ms, bool(taken))
            self._only_foreign(queue, bool(foreign), now_ms)
            if in_vain >= IN_VAIN:
                self._looked_in_vain[queue, frozenset(wanted.claim.names)] = now_ms
            # Behind jobs of names that nobody here knows are others, perhaps.
            if not (wanted.n > 0 and (skip or len(taken) == n == MOST_A_CALL)):
                wanted.due(next_due)
                return

    def _look(self, queue: str, wanted: _Claiming, now_ms: int) -> int | None:
        """How many of the line to look at for names that have room: few, where a look has just been in vain."""
        looked_ms = self._looked_in_vain.get((queue, frozenset(wanted.claim.names)))
        return None if looked_ms is None or looked_ms + LOOK_AGAIN_MS <= now_ms else LOOK_AT

    async def _tell_late(self, done: list[Settlement], codes: list[bytes], now_ms: int) -> None:
        """The feed was turned on since the last call: what this one made is told right after."""
        told = [
            event
            for settlement, code in zip(done, codes, strict=True)
            if code == b"done"
            for event in settlement_events(settlement, now_ms)
        ]
        await self.publish(told)

    async def _recover(self, queue: str, wanted: _Claiming, now_ms: int) -> None:
        """Running jobs whose lease has ended are looked for every 5 s, and when one of ours may have."""
        names = frozenset(wanted.rooms)
        if wanted.n <= 0 or not self._scans.is_due(queue, names, now_ms):
            return
        if self._clock is None:
            # A clock that was set meanwhile is noticed by idle workers as well.
            await self._learn_time()
        answer = await self._run(
            scripts.RECOVER,
            queue,
            now_ms,
            claim=wanted.request(min(MOST_A_CALL, wanted.n)),
            not_these=list(wanted.not_these),
        )
        taken, next_end, left = answer
        wanted.take(queue, taken, now_ms)
        self._scans.done(queue, names, now_ms, next_end, bool(left))
        self._scans.leased(queue, now_ms + wanted.claim.lease_ms, bool(taken))

    async def _fail_no_text(self, ids: list[tuple[str, bytes]], now_ms: int) -> None:
        """An id that is no text can go through no verb: such a job is failed here."""
        why = "its id is no text: it is not UTF-8"
        for queue, id in ids:
            log.warning("job %r of queue %s is failed: %s", id, queue, why)
            key = self._key(queue).encode()
            own = key + b":" + id
            steps: list[tuple[str | bytes | int, ...]] = [
                ("HSET", own, "failedReason", why, "finishedOn", now_ms),
                ("ZADD", key + b":failed", now_ms, id),
                ("LREM", key + b":active", -1, id),
                ("DEL", own + b":lock"),
            ]
            await self._link.many(self._key(queue), steps)

    # ------------------------------------------------------------------------------------------------ running

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """See the port."""
        lost: list[str] = []
        by_queue: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_queue[lease.queue].append(lease)
        for queue, own in by_queue.items():
            for first in range(0, len(own), 1_000):
                some = own[first : first + 1_000]
                now_ms = self.now()
                pairs = [(local(lease), lease.token) for lease in some]
                places = await self._run(scripts.EXTEND, queue, now_ms, leases=pairs, ms=for_ms)
                lost += [some[place].id for place in places]
                self._scans.leased(queue, now_ms + for_ms, len(places) < len(some))
        if leases and self._clock is None:
            await self._learn_time()
        return lost

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """See the port."""
        lost: list[str] = []
        by_queue: defaultdict[str, list[Report]] = defaultdict(list)
        for report in reports:
            by_queue[report.lease.queue].append(report)
        for queue, own in by_queue.items():
            for first in range(0, len(own), MOST_A_CALL):
                some = own[first : first + MOST_A_CALL]
                places = await self._run(scripts.REPORT, queue, self.now(), reports=[reported(one) for one in some])
                lost += [some[place].lease.id for place in places]
        return lost


class _Claiming:
    """One claim on its way over the queues: what it may still take, and what it has."""

    def __init__(self, claim: Claim, not_these: set[str]) -> None:
        self.claim = claim
        self.n = claim.n
        self.rooms = dict(claim.names)
        self.not_these = not_these
        self.claimed: list[Claimed | Broken] = []
        #: Ids that can go through no verb, and their queues.
        self.no_text: list[tuple[str, bytes]] = []
        self.next_due_ms: int | None = None
        self._worker_json = text({"worker": claim.worker})

    def request(self, n: int, skip: int = 0, look: int | None = None) -> dict[str, Any]:
        claim = self.claim
        return {
            "n": n if self.rooms else 0,
            "token": claim.token,
            "lease_ms": claim.lease_ms,
            "worker": claim.worker,
            "worker_json": self._worker_json,
            "names": self.rooms,
            "skip": skip or None,
            "look": look,
        }

    def take(self, queue: str, taken: list[Any], now_ms: int) -> None:
        claim = self.claim
        until_ms = now_ms + claim.lease_ms
        for raw_id, flat, crashed, is_older in taken:
            try:
                id = raw_id.decode()
            except UnicodeDecodeError:
                self.no_text.append((queue, raw_id))
                continue
            h = fields(flat)
            name = h.get(b"name", b"").decode(errors="replace")
            locator = (id, not crashed and b"jm" in h and SETTLED_PLAINLY.issuperset(h))
            shown = port_id(queue, id, b"jm" in h, is_latest=not is_older)
            lease = Lease(shown, claim.token, queue, name, until_ms, locator)
            try:
                self.claimed.append(
                    Claimed(claimed_job(queue, id, h, claim.worker, now_ms, bool(crashed), shown), lease)
                )
            except Unreadable as error:
                self.claimed.append(Broken(lease, str(error)))
            if name in self.rooms:
                self.rooms[name] -= 1
        self.n -= len(taken)

    def due(self, next_due_ms: int) -> None:
        if next_due_ms >= 0:
            self.next_due_ms = next_due_ms if self.next_due_ms is None else min(self.next_due_ms, next_due_ms)


def _all(settled: list[Settled | None]) -> list[Settled]:
    """Each queue has answered for its own."""
    return cast("list[Settled]", settled)
