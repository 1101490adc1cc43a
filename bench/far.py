"""A distant server: a proxy in a process of its own that delays everything, and parses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Iterator

from bench.child import READY, say, start
from tests.kit.places import at_port, free_port, port_of

CHUNK = 1 << 18


@contextlib.contextmanager
def far(url: str, round_trip_s: float) -> Iterator[str]:
    """The URL of the same database, through the proxy."""
    port = free_port()
    with start(forward, port=port, target=port_of(url), round_trip_s=round_trip_s) as proxy:
        proxy.wait_for(READY)
        yield at_port(url, port)


def forward(port: int, target: int, round_trip_s: float) -> None:
    """In the child: forward until it is killed."""
    # Other selectors wait for whole milliseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_forward(port, target, round_trip_s / 2))


async def _forward(port: int, target: int, delay_s: float) -> None:
    async def link(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pass(client, to_server, delay_s), _pass(server, to_client, delay_s))

    async with await asyncio.start_server(link, "127.0.0.1", port, limit=CHUNK):
        say(READY)
        await asyncio.Event().wait()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward all data and the end of the connection, with the delay."""
    later = asyncio.get_running_loop().call_later
    with contextlib.suppress(OSError):  # a side that was killed
        while data := await reader.read(CHUNK):
            later(delay_s, writer.write, data)
    later(delay_s, writer.close)
