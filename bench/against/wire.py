"""A proxy that counts what passes: statements (the client's requests), and round trips.

A round trip is a change of direction on one connection: the client has sent something, and the server answers. Several
requests that are sent together are one round trip. Answers arrive a little later than they would: so it does not
depend on the load of the machine what was sent before the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from msgspec import Struct

from tests.kit.places import at_port, free_port, port_of

CHUNK = 1 << 18
LATER_S = 0.002
#: What MongoDB's driver asks on its own, to know that the server is there.
HEARTBEATS = (b"hello", b"ismaster", b"isMaster")
OP_MSG = 2013


class Counts(Struct):
    """So far, of all connections."""

    statements: int = 0
    trips: int = 0


class Requests:
    """Cuts one connection's bytes into requests; `count` removes whole ones from the buffer, and returns how many."""

    def __init__(self, count: Callable[[bytearray], int]) -> None:
        self._count = count
        self._buffer = bytearray()

    def feed(self, data: bytes) -> int:
        """Number of requests that end with these bytes."""
        self._buffer += data
        return self._count(self._buffer)


def postgres() -> Callable[[bytearray], int]:
    """Execute and Query messages. The first message of a connection has no letter."""
    started = False

    def count(buffer: bytearray) -> int:
        nonlocal started
        found = 0
        while True:
            head = 1 if started else 0
            if len(buffer) < head + 4:
                return found
            size = head + int.from_bytes(buffer[head : head + 4], "big")
            if len(buffer) < size:
                return found
            if started:
                found += buffer[0] in b"EQ"
            started = started or size > 8  # 8: it asks for TLS, and starts again
            del buffer[:size]

    return count


def redis() -> Callable[[bytearray], int]:
    """Commands: arrays of strings."""

    def count(buffer: bytearray) -> int:
        found = 0
        while (size := _resp_size(buffer)) is not None:
            del buffer[:size]
            found += 1
        return found

    return count


def _resp_size(buffer: bytearray) -> int | None:
    """Of the first command, or None when it is not complete."""
    end = buffer.find(b"\r\n")
    if end < 0:
        return None
    at = end + 2
    for _ in range(int(buffer[1:end])):
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return None
        at = end + 2 + int(buffer[at + 1 : end]) + 2
    return at if at <= len(buffer) else None


def mongo() -> Callable[[bytearray], int]:
    """Commands, without the driver's heartbeats."""

    def count(buffer: bytearray) -> int:
        found = 0
        while len(buffer) >= 4 and len(buffer) >= (size := int.from_bytes(buffer[:4], "little")):
            if int.from_bytes(buffer[12:16], "little") == OP_MSG:
                name = bytes(buffer[26 : buffer.index(0, 26)])  # header 16, flags 4, kind 1, document's size 4, type 1
                found += name not in HEARTBEATS
            del buffer[:size]
        return found

    return count


PROTOCOLS = {"postgres": postgres, "redis": redis, "mongo": mongo}


@contextlib.contextmanager
def counting(store: str, url: str) -> Iterator[tuple[str, Counts]]:
    """The URL of the same server through a proxy, and what has passed so far."""
    counts, port, ready, loop = Counts(), free_port(), threading.Event(), asyncio.new_event_loop()
    serving = loop.create_task(_serve(store, port, port_of(url), counts, ready))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=run, name="counting proxy")
    thread.start()
    ready.wait()
    try:
        yield at_port(url, port), counts
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()


async def _serve(store: str, port: int, target: int, counts: Counts, ready: threading.Event) -> None:
    links: set[asyncio.Task[None]] = set()

    async def link(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        links.add(task)
        server, to_server = await asyncio.open_connection("127.0.0.1", target, limit=CHUNK)
        requests, asked = Requests(PROTOCOLS[store]()), False

        async def ask() -> None:
            nonlocal asked
            while data := await client.read(CHUNK):
                if found := requests.feed(data):
                    counts.statements += found
                    asked = True
                to_server.write(data)
            to_server.close()

        def deliver(data: bytes) -> None:
            nonlocal asked
            counts.trips += asked
            asked = False
            to_client.write(data)

        async def answer() -> None:
            later = asyncio.get_running_loop().call_later
            while data := await server.read(CHUNK):
                later(LATER_S, deliver, data)
            later(LATER_S, to_client.close)

        with contextlib.suppress(OSError):
            await asyncio.gather(ask(), answer())

    try:
        async with await asyncio.start_server(link, "127.0.0.1", port, limit=CHUNK):
            ready.set()
            await asyncio.Event().wait()
    finally:
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
