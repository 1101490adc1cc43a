"""A proxy before a PostgreSQL, Redis or MongoDB server, in the test's own loop, that spoils connections on demand.

    async with Proxy(server.port) as proxy:
        store = PostgresStore(proxy.url(server.url()))
        proxy.cut()

Verbs act at once on the connections that are open; `refuse`, `stall` and `delay` hold for new ones too, until ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import Callable
from typing import Self

from tests.kit import mongowire, pgwire, respwire
from tests.kit.places import at_port, free_port

CHUNK = 1 << 16

#: Chunks on their way in one direction; beyond that the sender is not read from, and soon cannot send.
ROOM = 64

#: A close that sends a reset instead of the rest.
RESET = struct.pack("ii", 1, 0)

#: A chunk and when it is due at the other side; an empty one is the end.
Passage = asyncio.Queue[tuple[float, bytes]]

Conversation = pgwire.Conversation | respwire.Conversation | mongowire.Conversation


class Proxy:
    """Forwards connections to a port of loopback, and counts what it does, so that a test can await it."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = free_port()
        self.accepted = 0  # connections
        self.cuts = 0  # connections
        self.held = 0  # chunks that a stall held up
        self.dropped_answers = 0
        self._gate = asyncio.Event()
        self._gate.set()
        self._delay_s = 0.0
        self._wanted: Callable[[bytes], bool] | None = None
        self._listener: socket.socket | None = None
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._failures: list[BaseException] = []

    def url(self, url: str) -> str:
        """The same database, through here."""
        return at_port(url, self.port)

    @property
    def connections(self) -> int:
        """That clients have open."""
        return len(self._links)

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        for link in list(self._links):
            self._cut(link)

    def refuse(self) -> None:
        """From now on nobody listens; open connections go on."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def accept(self) -> None:
        """End a refusal."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._take, self._listener)

    def stall(self) -> None:
        """Forward nothing, in either direction; connections stay open, and new ones are accepted."""
        self._gate.clear()

    def go_on(self) -> None:
        """End a stall: what was held up arrives."""
        self._gate.set()

    def half_open(self) -> None:
        """Close the server's side of all connections; the client's stays open and silent, like a host that vanished."""
        for link in self._links:
            link.half_open()

    def delay(self, seconds: float) -> None:
        """Let all that is sent from now on arrive so much later, each way; 0 ends it."""
        self._delay_s = seconds

    def drop_answer(self, predicate: Callable[[bytes], bool]) -> None:
        """Once: forward the first statement that matches, swallow the server's answer, and cut that connection.

        The server has done all that it was asked to: the connection is cut when its answer is there, to its end. The
        predicate is given the text of each statement when it is executed, and its parameters as they are sent; or all
        words of a command for Redis; or the name of a command for MongoDB, with its message.
        """
        self._wanted = predicate

    def is_wanted(self, statement: bytes) -> bool:
        """Whether this statement's answer is to be dropped; the first one only."""
        wanted = self._wanted is not None and self._wanted(statement)
        if wanted:
            self._wanted = None
        return wanted

    def drop(self, link: Link) -> None:
        """A link has swallowed its answer."""
        self.dropped_answers += 1
        self._cut(link)

    def due(self) -> float:
        """When what is read now is to arrive."""
        return asyncio.get_running_loop().time() + self._delay_s

    async def pass_gate(self) -> None:
        """Until no stall is on."""
        if not self._gate.is_set():
            self.held += 1
            await self._gate.wait()

    def _take(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # gone again before we looked
            return
        self.accepted += 1
        client.setblocking(False)
        link = Link(self, client)
        self._links[link] = task = asyncio.get_running_loop().create_task(link.run())
        task.add_done_callback(functools.partial(self._end, link))

    def _cut(self, link: Link) -> None:
        self.cuts += 1
        link.cut()

    def _end(self, link: Link, task: asyncio.Task[None]) -> None:
        del self._links[link]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def __aenter__(self) -> Self:
        """Listen."""
        self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cut what is open; an error of our own, or of the predicate, comes up here."""
        self.refuse()
        tasks = list(self._links.values())
        for link in list(self._links):
            link.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failures:
            raise self._failures[0]


class Link:
    """One client's connection, and ours to the server on its behalf."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._socket = client
        self._conversation: Conversation = pgwire.Conversation()
        self._has_begun = False
        self._writers: list[asyncio.StreamWriter] = []  # to the client, to the server
        self._over = asyncio.Event()
        self._is_half_open = False

    async def run(self) -> None:
        """Until one side closes, or the connection is cut."""
        work = asyncio.ensure_future(self._work())
        over = asyncio.ensure_future(self._over.wait())
        await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        over.cancel()
        await asyncio.wait((work, over))
        await self._close()
        if not work.cancelled():
            work.result()

    def cut(self) -> None:
        """Reset both sides."""
        _linger_not(self._socket)  # which may have no writer yet
        for writer in self._writers:
            _reset(writer)
        self._over.set()

    def half_open(self) -> None:
        """Reset the server's side, and say nothing more to the client."""
        self._is_half_open = True
        for writer in self._writers[1:]:
            _reset(writer)

    async def _work(self) -> None:
        client, to_client = await asyncio.open_connection(sock=self._socket)
        self._writers.append(to_client)
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._proxy.target_port)
        except OSError:
            self.cut()
            return
        self._writers.append(to_server)
        if self._is_half_open:
            self.half_open()
        there, back = Passage(ROOM), Passage(ROOM)
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._read(client, there))
            pumps.create_task(self._read(server, back))
            pumps.create_task(self._deliver(there, to_server, self._to_server))
            pumps.create_task(self._deliver(back, to_client, self._to_client))

    async def _read(self, reader: asyncio.StreamReader, passage: Passage) -> None:
        data = b"anything"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            await passage.put((self._proxy.due(), data))

    async def _deliver(
        self, passage: Passage, writer: asyncio.StreamWriter, passing: Callable[[bytes], bytes | None]
    ) -> None:
        """Forward what comes, late and through the gate, as far as it may pass; until the end or None."""
        while True:
            due, data = await passage.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await self._proxy.pass_gate()
            passed = passing(data)
            if passed is None:
                return
            with contextlib.suppress(OSError):  # the side that is gone shows at its reader
                writer.write(passed)
                await writer.drain()

    def _to_server(self, data: bytes) -> bytes | None:
        if not data:
            self._over.set()
            return None
        if not self._has_begun:
            self._has_begun = True
            if data.startswith(b"*"):  # a command of Redis; PostgreSQL's clients begin with a length
                self._conversation = respwire.Conversation()
            elif mongowire.begins(data):
                self._conversation = mongowire.Conversation()
        for statement in self._conversation.client_says(data):
            if self._proxy.is_wanted(statement.text):
                self._conversation.swallow(statement)
        return b"" if self._is_half_open else data

    def _to_client(self, data: bytes) -> bytes | None:
        if self._is_half_open:
            return None
        if not data:
            self._over.set()
            return None
        passed, is_over = self._conversation.server_says(data)
        if is_over:
            self._proxy.drop(self)
            return None
        return passed

    async def _close(self) -> None:
        """Let go of both sides, with what is still to be sent unless they were reset."""
        if not self._writers:
            self._socket.close()
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    _linger_not(writer.get_extra_info("socket"))
    writer.transport.abort()


def _linger_not(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
