"""Hints about jobs that end or are cancelled, read from streams.

BullMQ's stream of events says which jobs of a queue have ended, whichever program ended them. It is written anyway, so
hints cost a worker nothing. Cancels are in a stream of our own, because every worker reads it, and the events of a busy
queue are many. A connection blocks until a stream has a new entry, while a task waits for a hint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from jobmill.errors import StoreError
from jobmill.stores.common.job_hints import JobHints
from jobmill.stores.redis.codec import fields
from jobmill.stores.redis.connection.connect import connect
from jobmill.stores.redis.connection.errors import Moved
from jobmill.stores.redis.connection.pipelined import STORE_CLOSED, PipelinedConnection, pack
from jobmill.stores.redis.connection.pool import LoopConnections
from jobmill.stores.redis.context import RedisContext, as_json
from jobmill.stores.redis.ids import local_id, readable_id

log = logging.getLogger("jobmill")

# Shorter than the deadline of a call.
BLOCK_MS = 5_000
# A stream with more new entries than this is not read entry by entry.
MAX_ENTRIES = 100
# The pause after new entries: a busy stream is read 200 times per second at most.
BETWEEN_SECONDS = 0.005
# Pauses after errors of the connection. The last pause is used for all further attempts.
RETRY_SECONDS = (0.2, 1.0, 5.0, 15.0, 60.0)
#: How many cancels the stream keeps: more than a worker reads late.
MAX_CANCELS = 1_000
#: The events of BullMQ with which a job may have ended.
_ENDED = {b"completed", b"failed", b"removed"}
_decode_ids = msgspec.json.Decoder(list[str]).decode


async def wait_for_cancel(c: RedisContext, ids: Collection[str], until_ms: int) -> None:
    """See the port."""
    await watch_of(c, f"{c.operations}:cancels").wait(ids, (until_ms - c.clock.now()) / 1000)


async def wait_for_end(c: RedisContext, id: str, queue: str, until_ms: int) -> None:
    """See the port."""
    c.url.check_queue(queue)
    await watch_of(c, f"{c.key(queue)}:events").wait((local_id(queue, id),), (until_ms - c.clock.now()) / 1000)


async def add_cancels(c: RedisContext, ids: Sequence[str]) -> None:
    """Notify workers that jobs were cancelled. Where that fails, their heartbeats notice it."""
    key = f"{c.operations}:cancels"
    try:
        await c.client.call(key, "XADD", key, "MAXLEN", "~", MAX_CANCELS, "*", "ids", as_json(ids))
    except StoreError as error:
        log.debug("workers could not be notified of cancelled jobs: %s", error)


def watch_of(c: RedisContext, stream: str) -> StreamWatch:
    """The watch of a stream in the running event loop."""
    connections = c.client.here()
    # Other watches have the name of a queue, which has no colon.
    watch: StreamWatch | None = connections.watches.get(f"stream:{stream}")
    if watch is None:
        watch = connections.watches[f"stream:{stream}"] = StreamWatch(connections, stream)
    return watch


class StreamWatch:
    """Reads the new entries of one stream in one event loop, while a task waits for a hint."""

    def __init__(self, connections: LoopConnections, key: str) -> None:
        self._connections = connections
        self._key = key
        self._hints = JobHints()
        self._connection: PipelinedConnection | None = None
        #: The id of the last entry that was read.
        self._last: bytes = b"0-0"
        self._task: asyncio.Task[None] | None = None

    async def wait(self, ids: Collection[str], seconds: float) -> None:
        """Wait until an entry concerns one of these jobs, or entries may have been missed; at most this long."""
        if seconds <= 0:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"watch {self._key}")
        await self._hints.wait(ids, seconds)

    async def _run(self) -> None:
        failures = 0
        try:
            # The task begins before its first waiter waits.
            await asyncio.sleep(0)
            while self._hints:
                try:
                    await self._read(await self._connected())
                    failures = 0
                except StoreError as error:
                    log.debug("reading %s: %s", self._key, error)
                    self._end()
                    if isinstance(error, Moved):
                        self._connections.note(error)
                    await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                    failures += 1
        finally:
            self._task = None
            self._end()

    async def _connected(self) -> PipelinedConnection:
        connection = self._connection
        if connection is None or connection.ended is not None:
            address = await self._connections.where(self._key)
            connection = await connect(self._connections.url, address, f"{self._connections.url.prefix}:jobmill")
            self._connection = connection
            await self._skip(connection)
        return connection

    async def _read(self, connection: PipelinedConnection) -> None:
        read = ("XREAD", "COUNT", MAX_ENTRIES, "BLOCK", BLOCK_MS, "STREAMS", self._key, self._last)
        reply = await connection.send(pack(read))
        if reply is None:
            return
        entries: list[Any] = reply[0][1]
        self._last = entries[-1][0]
        if len(entries) < MAX_ENTRIES:
            self._hints.tell(_jobs_in(entries))
        else:
            await self._skip(connection)
        await asyncio.sleep(BETWEEN_SECONDS)

    async def _skip(self, connection: PipelinedConnection) -> None:
        """Continue at the end of the stream. What was skipped may have concerned any job."""
        newest = await connection.send(pack(("XREVRANGE", self._key, "+", "-", "COUNT", 1)))
        self._last = newest[0][0] if newest else b"0-0"
        self._hints.tell()

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.end(STORE_CLOSED)
            self._connection = None

    async def close(self) -> None:
        """Wake all tasks, and disconnect."""
        self._hints.tell()
        connection = self._connection
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if connection is not None:
            connection.end(STORE_CLOSED)
            await connection.lost()

    def abandon(self) -> None:
        """Forget the connection. For an event loop that does not run any more, so that nothing can be awaited."""
        if self._connection is not None:
            self._connection.abandon()


def _jobs_in(entries: Iterable[tuple[bytes, list[bytes]]]) -> list[str]:
    """The ids in new entries: of cancels, or of events with which jobs have ended."""
    found: list[str] = []
    for _, flat in entries:
        entry = fields(flat)
        if b"ids" in entry:
            found += _decode_ids(entry[b"ids"])
        elif entry.get(b"event") in _ENDED:
            found.append(readable_id(entry.get(b"jobId", b""))[0])
    return found
