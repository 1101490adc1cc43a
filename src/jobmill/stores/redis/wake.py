"""Sleeping workers: BullMQ's marker wakes one, whoever put it there.

A queue has one connection that sleeps at its marker, named as BullMQ names workers, so that Node counts ours among
them. Who takes a marker claims: a claim that leaves jobs behind puts it back for the next.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jobmill.errors import StoreError
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.redis.connection.blocking import Blocking
from jobmill.stores.redis.connection.client import Link
from jobmill.stores.redis.context import Base

log = logging.getLogger("jobmill")

# As BullMQ: a marker that is missing costs at most this.
POP_SECONDS = 5.0
# After trouble with the connection.
AGAIN_SECONDS = 1.0
# A queue in which only jobs of names wait that nobody here knows: its marker is left to others for so long.
SHY_MS = 500
SHY_TIMES = 10

_NOT_IN_NAMES = re.compile(r"[^!-~]")


def worker_name(prefix: str, queue: str, worker: str) -> str:
    """What CLIENT LIST shows of a worker's sleeping connection; Node looks for it."""
    name = _NOT_IN_NAMES.sub("_", worker)
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}:w:{name}"


async def _quietly(call: Awaitable[Any]) -> None:
    with contextlib.suppress(StoreError):
        await call


class Watch:
    """The marker of one queue, in one loop."""

    def __init__(self, link: Link, queue_key: str, name: str, now: Callable[[], int]) -> None:
        self._link = link
        self._key = f"{queue_key}:marker"
        self._name = name
        self._now = now
        self._waiting: set[asyncio.Future[Watch]] = set()
        self._blocking: Blocking | None = None
        self._task: asyncio.Task[None] | None = None
        #: Tasks that are about to end: somebody must know them until then.
        self._ending: set[asyncio.Task[Any]] = set()
        self._due_ms: float | None = None

    def add(self, waiter: asyncio.Future[Watch]) -> None:
        """Wake this one as well."""
        self._waiting.add(waiter)
        self.begin()

    def begin(self) -> None:
        """Be connected, so that others see the worker; and sleep at the marker while somebody waits."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch(), name=f"watch {self._key}")

    def discard(self, waiter: asyncio.Future[Watch]) -> None:
        """It waits no more. Without anybody, the marker is left to other workers."""
        self._waiting.discard(waiter)
        if not self._waiting and self._task is not None and self._blocking is not None:
            # Whoever comes in this moment begins another.
            self._task.cancel()
            self._keep_until_done(self._task)
            self._task = None

    def give_back(self) -> None:
        """Whom the marker woke does not claim after all: another worker may."""
        call = self._link.call(self._key, "ZADD", self._key, "NX", 0, "0")
        self._keep_until_done(asyncio.get_running_loop().create_task(_quietly(call)))

    def _keep_until_done(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            self._ending.add(self._task)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._blocking is not None:
            await self._blocking.close()
            self._blocking = None

    def abandon(self) -> None:
        """The loop has ended."""
        if self._blocking is not None:
            self._blocking.abandon()

    async def _watch(self) -> None:
        while self._blocking is None or self._waiting:
            try:
                if self._blocking is None:
                    self._blocking = await self._link.blocking(self._key, self._name)
                else:
                    await self._pop(self._blocking)
            except StoreError as error:
                # The worker's next exchange says what is wrong; this one tries on.
                log.debug("sleeping at %s: %s", self._key, error)
                if not self._waiting:
                    return  # whoever waits next tries again
                self._wake()
                await asyncio.sleep(AGAIN_SECONDS)

    async def _pop(self, blocking: Blocking) -> None:
        wait_s = POP_SECONDS
        if self._due_ms is not None:
            wait_s = min(wait_s, max(0.0, self._due_ms - self._now()) / 1000)
        popped = await blocking.pop(self._key, wait_s)
        if popped is not None and not self._waiting:
            await self._link.call(self._key, "ZADD", self._key, "NX", popped[1], popped[0])
            return
        now_ms = self._now()
        if popped is not None and popped[1] > now_ms:
            # A delayed job will be due: until then a marker of something else may come.
            self._due_ms = popped[1]
            return
        if popped is not None or (self._due_ms is not None and self._due_ms <= now_ms):
            self._due_ms = None
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(self)
        self._waiting.clear()


class Watches:
    """The watches of one loop."""

    def __init__(self) -> None:
        self.by_queue: dict[str, Watch] = {}

    async def close(self) -> None:
        """Hang up everywhere."""
        watches, self.by_queue = list(self.by_queue.values()), {}
        await asyncio.gather(*(watch.close() for watch in watches))

    def abandon(self) -> None:
        """The loop has ended."""
        for watch in self.by_queue.values():
            watch.abandon()


class Wakes(Base):
    """wait_for_work."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches = PerLoop(Watches)
        self._worker = ""
        self._shy_until_ms: dict[str, int] = {}

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port."""
        now_ms = self.now()
        shy = [until for queue in queues if (until := self._shy_until_ms.get(queue, 0)) > now_ms]
        wait_s = (min([until_ms, *shy]) - now_ms) / 1000
        if wait_s <= 0:
            return
        waiter: asyncio.Future[Watch] = asyncio.get_running_loop().create_future()
        watches = [self._watch(queue) for queue in queues if self._shy_until_ms.get(queue, 0) <= now_ms]
        for watch in watches:
            watch.add(waiter)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                waiter.result().give_back()
            raise
        finally:
            for watch in watches:
                watch.discard(waiter)

    def _watch(self, queue: str) -> Watch:
        here = self._watches.here().by_queue
        watch = here.get(queue)
        if watch is None:
            name = worker_name(self._place.prefix, queue, self._worker)
            watch = here[queue] = Watch(self._link, self._key(queue), name, self.now)
        return watch

    def _works(self, queue: str, worker: str) -> None:
        """A worker claims from this queue: others are to see it, however busy it is."""
        if worker and queue not in self._watches.here().by_queue:
            self._worker = worker
            self._watch(queue).begin()

    def _only_foreign(self, queue: str, is_so: bool, now_ms: int) -> None:
        """Only jobs wait there that this process must leave alone: their marker would wake it for ever."""
        if is_so:
            # The longer it took to look through them, the longer.
            after_ms = self.now()
            self._shy_until_ms[queue] = after_ms + max(SHY_MS, SHY_TIMES * (after_ms - now_ms))
        elif self._shy_until_ms:
            self._shy_until_ms.pop(queue, None)
