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
from collections.abc import Sequence
from typing import Any

from jobmill.errors import StoreError
from jobmill.stores.redis.connection.connect import connect
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import STORE_CLOSED, PipelinedConnection, Word, ignore_outcome, pack
from jobmill.stores.redis.connection.pool import LoopConnections
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.url import Address

log = logging.getLogger("jobmill")

# The same as in BullMQ: if a marker is missing, jobs wait at most this long. Shorter than the deadline of a call.
POP_SECONDS = 5.0
# Zero would mean "no timeout", and servers before 7.0.8 treat less than 2 ms as zero.
MIN_POP_SECONDS = 0.002
# The pause after an error of the connection.
RETRY_SECONDS = 1.0
# How long putting a marker back may take when the store is closed.
CLOSE_SECONDS = 1.0
# Node changes limits without a marker: where a limit is reached, a worker claims at least this often.
LIMITED_SECONDS = 0.9
# If only jobs with unknown names wait in a queue, this process ignores the marker of the queue for this time, or for
# this many times the duration of the scan, if that is longer.
IGNORE_MS = 500
IGNORE_TIMES = 10


def worker_name(prefix: str, queue: str, worker: str) -> str:
    """The name of a worker's blocked connection in CLIENT LIST, where Node looks for it."""
    return f"{prefix}:{base64.b64encode(queue.encode()).decode()}:w:{worker}"


async def wait_for_work(c: RedisContext, queues: Sequence[str], until_ms: int) -> None:
    """Wait until a queue has a marker. If this task is cancelled after a marker woke it, the marker is put back."""
    now_ms = c.clock.now()
    ignored = {queue: until for queue in queues if (until := c.marker_ignored_until_ms.get(queue, 0)) > now_ms}
    wait_s = (min([until_ms, *ignored.values()]) - now_ms) / 1000
    if not c.limited.isdisjoint(queues):
        wait_s = min(wait_s, LIMITED_SECONDS)
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

    When no task waits any more, this ends the pop on the server. If the pop still returns a marker, the marker is put
    back.
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
        self._task: asyncio.Task[None] | None = None
        self._popping: asyncio.Future[Any] | None = None
        self._putting_back: asyncio.Future[Any] | None = None
        #: When the first delayed job is due, according to the last marker.
        self._due_ms: float | None = None

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
        """Connect if necessary, and pop the marker as long as a task waits for it."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"watch {self._key}")

    async def _run(self) -> None:
        try:
            while True:
                try:
                    connection = await self._connected()
                    if not self._waiters:
                        return
                    await self._pop(connection)
                except StoreError as error:
                    log.debug("waiting at %s: %s", self._key, error)
                    self._end()
                    if not self._waiters:
                        return
                    if isinstance(error, Moved):
                        self._connections.note(error)
                    else:
                        # The next exchange of the worker reports the error.
                        self._wake()
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._task = None

    async def _connected(self) -> PipelinedConnection:
        """The connection under the name of the worker; made first, if necessary."""
        connection = self._connection
        if connection is None or connection.ended is not None:
            self._address = await self._connections.where(self._key)
            connection = self._connection = await connect(self._connections.url, self._address, self._name)
            self._client_id = await connection.send(pack(("CLIENT", "ID")))
        return connection

    async def _pop(self, connection: PipelinedConnection) -> None:
        wait_s = POP_SECONDS
        if self._due_ms is not None:
            wait_s = max(MIN_POP_SECONDS, min(wait_s, (self._due_ms - self._now()) / 1000))
        popping = self._popping = connection.send(pack(("BZPOPMIN", self._key, f"{wait_s:.3f}")))
        try:
            reply = await asyncio.shield(popping)
        except asyncio.CancelledError:
            # The store is closed, or the event loop ends. A marker that arrives at this moment must not be lost.
            self._wake()
            self._unblock()
            await asyncio.wait([popping], timeout=CLOSE_SECONDS)
            if popping.done() and popping.exception() is None:
                self._popped(popping.result())
            raise
        finally:
            self._popping = None
        self._popped(reply)

    def _popped(self, reply: list[bytes] | None) -> None:
        now_ms = self._now()
        if reply is not None and not self._waiters:
            self.put_back(reply[2], reply[1])
        elif reply is not None and float(reply[2]) > now_ms:
            self._due_ms = float(reply[2])
        elif reply is not None or (self._due_ms is not None and self._due_ms <= now_ms):
            self._due_ms = None
            self._wake()

    def put_back(self, score: Word = 0, member: Word = "0") -> None:
        """Put a marker back for another worker. If there is a new marker already, that one stays unchanged."""
        self._putting_back = self._send_elsewhere(("ZADD", self._key, "NX", score, member))

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(self)
        self._waiters.clear()

    def _unblock(self) -> None:
        """End the pop on the server. If that is not possible, the pop ends at its timeout."""
        self._send_elsewhere(("CLIENT", "UNBLOCK", self._client_id))

    def _send_elsewhere(self, command: tuple[Word, ...]) -> asyncio.Future[Any] | None:
        """Send through the connection that all calls share: the connection of this watch may be blocked."""
        shared = self._connections.ready(self._address)
        if shared is None:
            return None
        sent = shared.send(pack(command))
        sent.add_done_callback(ignore_outcome)
        return sent

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.end(STORE_CLOSED)

    async def close(self) -> None:
        """Disconnect, after a marker that arrives at this moment was put back."""
        self._wake()
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
            if self._putting_back is not None:
                await asyncio.wait([self._putting_back], timeout=CLOSE_SECONDS)
        finally:
            self._end()
        if self._connection is not None:
            await self._connection.lost()

    def abandon(self) -> None:
        """Forget the connection. For an event loop that does not run any more, so that nothing can be awaited."""
        if self._connection is not None:
            self._connection.abandon()
