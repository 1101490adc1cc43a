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

from tests.kit import mongowire, pgwire, respwire
from tests.kit.places import at_port, free_port, port_of
from tests.kit.proxy import Conversation

CHUNK = 1 << 18
LATER_S = 0.002
#: What follows a connection from its first byte, and knows the driver's own questions of MongoDB: whether it is there.
PROTOCOLS: dict[str, Callable[[], Conversation]] = {
    "postgres": pgwire.Conversation,
    "redis": respwire.Conversation,
    "mongo": mongowire.Conversation,
}


class Counts(Struct):
    """So far, of all connections."""

    statements: int = 0
    trips: int = 0


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
        conversation, asked = PROTOCOLS[store](), False

        async def ask() -> None:
            nonlocal asked
            while data := await client.read(CHUNK):
                if found := sum(1 for _ in conversation.client_says(data)):
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
