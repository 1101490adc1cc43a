"""Sleeping workers: a change stream tells of what is inserted or waits again, whoever wrote it.

A job that is due later wakes nobody: those who sleep longer than that are woken when it is due. What was told while
nobody slept is remembered until the next claim. Where nobody sleeps for a while the stream is closed. A server that is
in no replica set has no streams: there workers look again every fifth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.change_stream import AsyncDatabaseChangeStream
from pymongo.errors import OperationFailure

from jobmill.core.values import Claim, NewJob
from jobmill.errors import StoreError
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.mongo.codec import queue_of
from jobmill.stores.mongo.connection import QUEUES, STANDALONE, Document, told_apart
from jobmill.stores.mongo.purge import Purges
from jobmill.stores.mongo.values import ms_of

log = logging.getLogger("jobmill")

POLL_S = 0.2
#: After trouble with the stream.
AGAIN_S = 0.5
#: How long the server holds a question back that it has no answer to.
AWAIT_MS = 500
#: Nobody has slept for so long: the stream is closed, for the server reads its whole log for it (measured: 35 of the
#: 200 us that a job of a busy worker costs it).
UNUSED_S = 1.0
#: The stream cannot go on from where it was: the server has forgotten it, or cannot make sense of it.
_FORGOTTEN = {136, 260, 280, 286}


class Sleeper:
    """Somebody who waits for work of some queues."""

    def __init__(self, queues: Sequence[str], until_ms: int) -> None:
        self.queues = frozenset(queues)
        self.until_ms = until_ms
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Let it look."""
        if not self.woken.done():
            self.woken.set_result(None)

    def wake_at(self, due_ms: int, now_ms: int) -> None:
        """Let it look then, if it does not sooner anyway."""
        if due_ms < self.until_ms:
            self.until_ms = due_ms
            self.stop()
            self._timer = asyncio.get_running_loop().call_later(max(0, due_ms - now_ms) / 1000, self.wake)

    def stop(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()


class Watch:
    """The stream of one loop, open while somebody sleeps and a little longer."""

    def __init__(self, store: Wakes) -> None:
        self._store = store
        self._sleepers: set[Sleeper] = set()
        self._task: asyncio.Task[None] | None = None
        self._resume: Any = None
        self._slept = 0.0
        self._is_closed = False
        # When something was told, and when somebody last claimed, by queue.
        self._told: dict[str, float] = {}
        self._told_all = 0.0
        self._claimed: dict[str, float] = {}

    def begin(self) -> None:
        """Open the stream."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch for jobs")

    def has_news(self, queues: Sequence[str]) -> bool:
        """Whether something was told since a claim last looked there."""
        told = ((max(self._told.get(queue, 0.0), self._told_all), queue) for queue in queues)
        return any(at > self._claimed.get(queue, 0.0) for at, queue in told)

    def claims(self, queues: Sequence[str]) -> None:
        """A claim looks at these queues now: what was told until now it sees itself."""
        now = time.monotonic()
        for queue in queues:
            self._claimed[queue] = now

    def add(self, sleeper: Sleeper) -> None:
        """Wake this one as well."""
        self._sleepers.add(sleeper)

    def discard(self, sleeper: Sleeper) -> None:
        """It sleeps no more."""
        sleeper.stop()
        self._sleepers.discard(sleeper)
        self._slept = time.monotonic()

    def tell(self, queue: str | None, due_ms: int | None) -> None:
        """Something waits in a queue (None: in any), now or from a time on."""
        now_ms = self._store.now()
        meant = [one for one in self._sleepers if queue is None or queue in one.queues]
        if due_ms is not None and due_ms > now_ms and meant:
            for one in meant:
                one.wake_at(due_ms, now_ms)
            return
        if queue is None:
            self._told_all = time.monotonic()
        else:
            self._told[queue] = time.monotonic()
        for one in meant:
            one.wake()

    async def close(self) -> None:
        """End the stream. It ends by itself where the driver loses the cancellation, as Python 3.11's wait_for does."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def abandon(self) -> None:
        """The loop has ended."""

    def _is_unused(self) -> bool:
        return self._is_closed or (not self._sleepers and time.monotonic() - self._slept > UNUSED_S)

    async def _watch(self) -> None:
        while not self._store._is_standalone and not self._is_unused():
            try:
                with told_apart(self._store._place):
                    await self._listen()
            except StoreError as error:
                # The worker's next exchange says what is wrong; this one tries on.
                log.debug("waiting for jobs at %s: %s", self._store._place.url, error)
                self.tell(None, None)
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("the stream of %s brought something odd; it goes on", self._store._place.shown)
                await asyncio.sleep(AGAIN_S)

    async def _listen(self) -> None:
        try:
            async with await self._open() as stream:
                # What came before the stream was open nobody has told.
                self.tell(None, None)
                while stream.alive and not self._is_unused():
                    said = await stream.try_next()
                    self._resume = stream.resume_token
                    if said is not None:
                        self._hear(said)
            # Nobody sleeps, or the database was dropped. Whoever sleeps next looks for what has come until then.
            self._resume = None
        except OperationFailure as error:
            if error.code in STANDALONE:
                self._store._note_standalone()
                return
            if error.code in _FORGOTTEN:
                self._resume = None
            raise

    async def _open(self) -> AsyncDatabaseChangeStream[Document]:
        here = self._store._here
        pipeline = _pipeline(self._store._place.collection)
        return await here.database.watch(pipeline, resume_after=self._resume, max_await_time_ms=AWAIT_MS)

    def _hear(self, said: Document) -> None:
        if said["ns"]["coll"] != self._store._place.collection:
            self.tell(str(said["documentKey"]["_id"]), None)
            return
        document = said.get("fullDocument")
        if document is None:
            changed = said.get("updateDescription", {}).get("updatedFields", {})
            self.tell(None, ms_of(changed.get("nextRunAt")))
        elif self._store._knows(document.get("name")):
            self._store._report_new({**document, **said["documentKey"]})
            queue = queue_of(document, self._store._place.queue)
            self.tell(queue, ms_of(document.get("nextRunAt")))


class Wakes(Purges):
    """wait_for_work."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches = PerLoop(lambda: Watch(self))
        self._is_standalone = False

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port."""
        watch = self._watches.here()
        wait_s = (until_ms - self.now()) / 1000
        if wait_s <= 0 or watch.has_news(queues):
            return
        if self._is_standalone:
            wait_s = min(wait_s, POLL_S)
        else:
            watch.begin()
        sleeper = Sleeper(queues, until_ms)
        watch.add(sleeper)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await sleeper.woken
        finally:
            watch.discard(sleeper)

    def _begins(self, claim: Claim) -> None:
        """A claim is made: what it looks at, and which names somebody here works."""
        super()._begins(claim)
        self._watches.here().claims(claim.queues)

    def _knows(self, name: Any) -> bool:
        """Whether a job of this name may be for somebody here; where nobody has claimed yet, any may."""
        return not self._names or (isinstance(name, str) and name in self._names)

    def _wake_here(self, new_jobs: Sequence[NewJob]) -> None:
        watch = self._watches.here()
        now_ms = self.now()
        for new in new_jobs:
            watch.tell(new.queue, new.due.resolve(now_ms))

    def _note_standalone(self) -> None:
        """Say it once."""
        if not self._is_standalone:
            self._is_standalone = True
            log.warning(
                "MongoDB at %s is in no replica set: it has no change streams and no transactions, so workers look "
                "for jobs every %g s and nothing can be enqueued within a transaction",
                self._place.url,
                POLL_S,
            )


def _pipeline(collection: str) -> list[Document]:
    """Jobs that were inserted, or wait again, or are due at another time; and queues whose settings changed."""
    waits = [
        {"updateDescription.updatedFields.status": "pending"},
        {"updateDescription.updatedFields.nextRunAt": {"$exists": True}},
    ]
    match = {
        "$or": [
            {"ns.coll": collection, "operationType": {"$in": ["insert", "replace"]}},
            {"ns.coll": collection, "operationType": "update", "$or": waits},
            {"ns.coll": QUEUES, "operationType": "insert"},
            {"ns.coll": QUEUES, "updateDescription.updatedFields.changes": {"$exists": True}},
        ]
    }
    seen = {
        "ns": 1,
        "operationType": 1,
        "documentKey": 1,
        "fullDocument.name": 1,
        "fullDocument.status": 1,
        "fullDocument.nextRunAt": 1,
        "fullDocument.jobmill.queue": 1,
        "updateDescription.updatedFields.nextRunAt": 1,
    }
    return [{"$match": match}, {"$project": seen}]
