"""The limit: the MongoDB store's own statements in a bare loop, nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from pymongo import UpdateMany, monitoring

from bench.figures import Ran
from bench.loop import on_uvloop
from bench.peers.about import About
from bench.stopwatch import metering
from jobmill.client.client import connect
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Broken, Claim, Claimed, Exchanged
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.connection import MongoConnection
from jobmill.stores.mongo.url import MongoUrl

ABOUT = About(
    name="bare loop on MongoDB",
    package=None,
    settings="the store's two statements as it sent them once (find, settle 50 + claim 50 in one bulk; or 25, two in "
    "flight), by pymongo's aggregate and bulk_write, with new ids; each begins where the last claimed job was due; "
    "of a job only its id and due time are looked at; uvloop",
    guarantee="–",
)

QUEUE, NAME = "default", "noop"
#: The statements are sent as they were made: their lease must not end meanwhile.
LEASE_MS = 300_000

Document = dict[str, Any]


class Sent(monitoring.CommandListener):
    """The last aggregate and update that a client has sent."""

    def __init__(self) -> None:
        self.commands: dict[str, Document] = {}

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Kept as it is: pymongo may go on with it."""
        if event.command_name in ("aggregate", "update"):
            self.commands[event.command_name] = deepcopy(dict(event.command))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Of no interest."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """The store says so."""


class Flight:
    """One exchange after the other, in the words of one that the store has sent."""

    def __init__(self, here: MongoConnection, sent: Mapping[str, Document], batch: int, in_hand: set[Any]) -> None:
        self._here = here
        look = sent["aggregate"]
        self._stages, self._hint = look["pipeline"], look["hint"]
        self._size = batch + 3
        self._settle, self._claim = sent["update"]["updates"]
        self._batch = batch
        #: What another flight is just taking.
        self._in_hand = in_hand
        self._held: list[Any] = []

    async def fly(self) -> int:
        """Until nothing waits any more; how many were settled."""
        done = 0
        while True:
            async with self._here.searching:
                found = await self._look()
                ids = [one["_id"] for one in found][: self._batch]
                self._in_hand.update(ids)
            if not ids and not self._held:
                return done
            done += await self._write(ids)
            self._in_hand.difference_update(ids)
            self._held = ids
            if ids:
                self._due["$gte"] = found[0]["nextRunAt"]

    @property
    def _due(self) -> Document:
        due: Document = self._stages[0]["$match"]["nextRunAt"]
        return due

    async def _look(self) -> list[Document]:
        self._due["$lte"] = date(time.time_ns() // 1_000_000)
        self._stages[0]["$match"]["_id"]["$nin"] = list(self._in_hand)
        answer = await self._here.jobs.aggregate(self._stages, batchSize=self._size, hint=self._hint)
        return [one for one in await answer.to_list() if "nextRunAt" in one]

    async def _write(self, ids: Sequence[Any]) -> int:
        """Settle what is held and claim these, all of them: nobody else is there; how many were settled."""
        wanted = [(self._settle, self._held), (self._claim, ids)]
        writes = [UpdateMany(_of(one["q"], own), one["u"], hint=one["hint"]) for one, own in wanted if own]
        result = await self._here.jobs.bulk_write(writes, ordered=False)
        expected = len(self._held) + len(ids)
        if result.matched_count != expected:
            raise RuntimeError(f"expected {expected} jobs to be settled or claimed, got {result.matched_count}")
        return len(self._held)


def _of(query: Document, ids: Sequence[Any]) -> Document:
    return {**query, "_id": {"$in": ids}}


@on_uvloop
async def drain(url: str, batch: int, flights: int) -> Ran:
    """Claim and settle all that waits, so many at a time in each of so many flights."""
    place = MongoUrl.read(url)
    # Made first: a client that is made once somebody listens pays for that with each command.
    here = MongoConnection(place)
    await here.jobs.find_one({})
    in_hand: set[Any] = set()
    flying = [Flight(here, await _sent(url, batch, f"{n:032x}"), batch, in_hand) for n in range(flights)]
    with metering() as watch:
        ran = watch.ran(sum(await asyncio.gather(*(one.fly() for one in flying))))
    await here.close()
    return ran


async def _sent(url: str, batch: int, token: str) -> dict[str, Document]:
    """What the store sends when it settles and claims so many; it settles those jobs as well, before the clock runs."""
    monitoring.register(sent := Sent())
    claim = Claim(
        queues=(QUEUE,), names={NAME: batch}, n=batch, lease_ms=LEASE_MS, worker="bench", token=token
    )  # fmt: skip
    async with connect(url) as client:
        store = client.store

        async def exchange(last: Exchanged | None, wanted: Claim | None) -> Exchanged:
            claimed: list[Claimed | Broken] = last.claimed if last is not None else []
            done = [
                settle(one, Succeeded(), DEFAULT_POLICY, store.now()) for one in claimed if isinstance(one, Claimed)
            ]
            return await store.exchange(done, wanted)

        last = await exchange(await exchange(None, claim), claim)
        commands = dict(sent.commands)
        await exchange(last, None)
    return commands
