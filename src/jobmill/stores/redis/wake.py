"""Waking workers: BullMQ's marker wakes one of them, whichever program wrote it.

A marker is an entry in a sorted set of the queue, which BullMQ writes when a job waits. For each queue, one connection
blocks until the marker appears. The connection has the name of a BullMQ worker, so that Node counts our workers too.
The worker that gets the marker claims jobs. If its claim leaves jobs behind, it writes the marker again for the next
worker.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Sequence
from typing import Any

from jobmill.errors import StoreError
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import (
    STORE_CLOSED,
    PipelinedConnection,
    Word,
    ignore_outcome,
    pack,
)
from jobmill.stores.redis.connection.pool import LoopConnections
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.url import Address

log = logging.getLogger("jobmill")

# The same as in BullMQ: if a marker is missing, jobs wait at most this long.
POP_SECONDS = 5.0
# Zero would mean "no timeout", and servers before 7.0.8 treat less than 2 ms as zero.
MIN_POP_SECONDS = 0.002
# Added to the timeout of a pop. The server ends the pop before this time, unless the connection is dead.
GRACE_SECONDS = 1.0
# The pause after an error of the connection.
RETRY_SECONDS = 1.0
# How long putting a marker back may take when the store is closed.
CLOSE_SECONDS = 1.0
# If only jobs with unknown names wait in a queue, this process ignores the marker of the queue for this time, or for
# this many times the duration of the scan, if that is longer.
IGNORE_MS = 500
IGNORE_TIMES = 10

_NOT_IN_NAMES = re.compile(r"[^!-~]")


def worker_name(prefix: str, queue: str, worker: str) -> str:
    """The name of a worker's blocked connection in CLIENT LIST, where Node looks for it."""
    name = _NOT_IN_NAMES.sub("_", worker)
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}:w:{name}"


async def wait_for_work(c: RedisContext, queues: Sequence[str], until_ms: int) -> None:
    """Wait until a queue has a marker. If this task is cancelled after a marker woke it, the marker is put back."""
    now_ms = c.clock.now()
    ignored = {queue: until for queue in queues if (until := c.marker_ignored_until_ms.get(queue, 0)) > now_ms}
    wait_s = (min([until_ms, *ignored.values()]) - now_ms) / 1000
    if wait_s <= 0:
        return
    waiter: asyncio.Future[MarkerWatch] = asyncio.get_running_loop().create_future()
    watches = [watch_of(c, queue) for queue in queues if queue not in ignored]
    for watch in watches:
        watch.add(waiter)
    try:
        await asyncio.wait((waiter,), timeout=wait_s)
    except asyncio.CancelledError:
        if waiter.done():
            waiter.result().put_back()
        raise
    finally:
        for watch in watches:
            watch.discard(waiter)


def watch_of(c: RedisContext, queue: str) -> MarkerWatch:
    """The watch of a queue in the running event loop."""
    connections = c.client.here()
    watch: MarkerWatch | None = connections.watches.get(queue)
    if watch is None:
        watch = connections.watches[queue] = MarkerWatch(c, connections, queue)
    return watch


def show_worker(c: RedisContext, queue: str, worker: str) -> None:
    """Connect under the name of a worker that claims from this queue, so that other programs see the worker.

    The connection exists even while the worker is too busy to wait for a marker.
    """
    if worker and queue not in c.client.here().watches:
        c.url.check_queue(queue)
        c.worker = worker
        watch_of(c, queue).start()


def ignore_marker(c: RedisContext, queue: str, only_foreign: bool, began_ms: int) -> None:
    """Ignore the marker of a queue for a time if the queue has only jobs for other processes.

    Otherwise the marker would wake this process again and again.
    """
    if only_foreign:
        # The longer the scan took, the longer the pause.
        now_ms = c.clock.now()
        c.marker_ignored_until_ms[queue] = now_ms + max(IGNORE_MS, IGNORE_TIMES * (now_ms - began_ms))
    else:
        c.marker_ignored_until_ms.pop(queue, None)


class MarkerWatch:
    """Pops the marker of one queue in one event loop, while a task waits for the marker.

    The pop does not run in an asyncio task. Tasks are cancelled when an event loop ends, and a marker that arrives at
    that moment would be lost. When no task waits any more, this ends the pop on the server. If the pop still returns a
    marker, the marker is put back.
    """

    def __init__(self, c: RedisContext, connections: LoopConnections, queue: str) -> None:
        self._now = c.clock.now
        self._connections = connections
        self._key = f"{c.key(queue)}:marker"
        self._name = worker_name(c.url.prefix, queue, c.worker)
        self._waiters: set[asyncio.Future[MarkerWatch]] = set()
        self._connection: PipelinedConnection | None = None
        self._address: Address | None = None
        self._client_id = 0
        self._connecting: asyncio.Task[None] | None = None
        self._popping: asyncio.Future[Any] | None = None
        self._putting_back: asyncio.Future[Any] | None = None
        #: When the first delayed job is due, according to the last marker.
        self._due_ms: float | None = None
        self._closed = False

    def add(self, waiter: asyncio.Future[MarkerWatch]) -> None:
        """Wake this waiter as well."""
        self._waiters.add(waiter)
        self.start()

    def discard(self, waiter: asyncio.Future[MarkerWatch]) -> None:
        """Forget this waiter. If no waiter is left, other workers get the marker."""
        self._waiters.discard(waiter)
        if not self._waiters and self._popping is not None:
            self._unblock()

    def start(self) -> None:
        """Connect if necessary, and pop the marker if a task waits for it."""
        if self._closed or self._popping is not None or self._connecting is not None:
            return
        if self._connection is None or self._connection.ended is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name=f"watch {self._key}")
        elif self._waiters:
            wait_s = POP_SECONDS
            if self._due_ms is not None:
                wait_s = max(MIN_POP_SECONDS, min(wait_s, (self._due_ms - self._now()) / 1000))
            pop = pack(("BZPOPMIN", self._key, f"{wait_s:.3f}"))
            self._popping = self._connection.send(pop, None, wait_s + GRACE_SECONDS)
            self._popping.add_done_callback(self._popped)

    def _popped(self, popping: asyncio.Future[Any]) -> None:
        self._popping = None
        if (error := popping.exception()) is not None:
            self._failed(error)
            return
        reply, now_ms = popping.result(), self._now()
        if reply is not None and not self._waiters:
            self.put_back(reply[2], reply[1])
        elif reply is not None and float(reply[2]) > now_ms:
            self._due_ms = float(reply[2])
        elif reply is not None or (self._due_ms is not None and self._due_ms <= now_ms):
            self._due_ms = None
            self._wake()
        self.start()

    def put_back(self, score: Word = 0, member: Word = "0") -> None:
        """Put a marker back for another worker. If there is a new marker already, that one stays unchanged."""
        # A command on a blocked connection would wait for the end of the pop.
        connection = self._connection if self._popping is None else self._connections.ready(self._address)
        if connection is not None and connection.ended is None:
            self._putting_back = connection.send(pack(("ZADD", self._key, "NX", score, member)))
            self._putting_back.add_done_callback(ignore_outcome)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(self)
        self._waiters.clear()

    def _unblock(self) -> None:
        """End the pop on the server. This needs another connection; without one, the pop ends at its timeout."""
        main = self._connections.ready(self._address)
        if main is not None:
            main.send(pack(("CLIENT", "UNBLOCK", self._client_id))).add_done_callback(ignore_outcome)

    # ------------------------------------------------------------------------------------------------ connection

    def _failed(self, error: BaseException) -> None:
        if self._closed:
            return
        pause_s = RETRY_SECONDS
        if isinstance(error, Moved):
            try:
                self._connections.note(error)
                pause_s = 0.0
            except StoreError as not_a_cluster:
                error = not_a_cluster
        log.debug("waiting at %s: %s", self._key, error)
        if pause_s:
            # The next exchange of the worker reports the error.
            self._wake()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(pause_s), name=f"watch {self._key}")

    async def _connect(self, pause_s: float = 0.0) -> None:
        """Connect under the name of the worker. After an error, try again as long as a task waits."""
        try:
            self._end(STORE_CLOSED)
            while self._connection is None:
                await asyncio.sleep(pause_s)
                try:
                    await self._connect_once()
                except StoreError as error:
                    log.debug("waiting at %s: %s", self._key, error)
                    if not self._waiters:
                        return
                    self._wake()
                    pause_s = RETRY_SECONDS
        finally:
            self._connecting = None
        self.start()

    async def _connect_once(self) -> None:
        address = await self._connections.where(self._key)
        connection = await self._connections.new(address, self._name)
        try:
            self._client_id = await connection.send(pack(("CLIENT", "ID")))
        except BaseException:
            connection.end(STORE_CLOSED)
            raise
        self._connection, self._address = connection, address

    def _end(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end(why)

    async def close(self) -> None:
        """Disconnect. A marker that arrives at this moment is put back, so it is not lost."""
        self._closed = True
        self._wake()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connection = self._connection
        if connection is None:
            return
        try:
            if self._popping is not None:
                self._unblock()
                await asyncio.wait([self._popping], timeout=CLOSE_SECONDS)
            if self._putting_back is not None:
                await asyncio.wait([self._putting_back], timeout=CLOSE_SECONDS)
        finally:
            self._end(STORE_CLOSED)
        await connection.lost()

    def abandon(self) -> None:
        """Forget the connection. For an event loop that does not run any more, so that nothing can be awaited."""
        if self._connection is not None:
            self._connection.abandon()
