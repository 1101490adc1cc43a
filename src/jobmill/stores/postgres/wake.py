"""Waking: sleeping workers listen, whoever makes work tells them; where listening does not work they poll.

A worker that wants to sleep is noted in `sleepers` before it looks for work the last time. Whoever makes work looks
there after the commit. So one of the two always sees the other; what is missed all the same (a connection that broke)
is found when the worker looks by itself, every five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from jobmill.errors import StoreError
from jobmill.stores.postgres.connections import CONNECT_SECONDS, Connection, Connections, close
from jobmill.stores.postgres.statements import Statements, quoted

log = logging.getLogger("jobmill.postgres")

# How long a sleeper is told of work, and when it is noted again.
NOTED_MS = 15_000
RENEW_SECONDS = 7.0
# How long an answer to our own notification may take; behind a pooler it never comes.
PROBE_SECONDS = 2.0
PROVE_AGAIN_SECONDS = 20.0
POLL_SECONDS = 0.5
# A broken or useless listener is tried again after so long.
AGAIN_SECONDS = (0.2, 1.0, 5.0, 15.0, 60.0)


class Bell:
    """Counts how often each queue was rung, and wakes who waits for one of them."""

    def __init__(self) -> None:
        self._rings: dict[str, int] = {}
        self._all = 0
        self._waiting: set[tuple[frozenset[str], asyncio.Event]] = set()

    def count(self, queues: Iterable[str]) -> int:
        """How often one of these was rung."""
        return self._all + sum(self._rings.get(queue, 0) for queue in queues)

    def ring(self, queues: Iterable[str] | None = None) -> None:
        """There may be work in these queues; None: in any."""
        rung = None if queues is None else set(queues)
        if rung is None:
            self._all += 1
        for queue in rung or ():
            self._rings[queue] = self._rings.get(queue, 0) + 1
        for wanted, event in self._waiting:
            if rung is None or not rung.isdisjoint(wanted):
                event.set()

    async def wait(self, queues: frozenset[str], seconds: float) -> None:
        """Until one of these is rung, or the time is over."""
        waiter = (queues, asyncio.Event())
        self._waiting.add(waiter)
        try:
            # Not wait_for, which forgets a cancellation that comes together with what it waits for (Python 3.11).
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiter[1].wait()
        finally:
            self._waiting.discard(waiter)


class Waking:
    """One listener, and one teller, of one event loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], connections: Connections, statements: Statements
    ) -> None:
        self._connect = connect
        self._connections = connections
        self._statements = statements
        self._name = secrets.token_hex(8)
        self.bell = Bell()
        # Per set of queues: how many rings the last exchange about them has seen; and until when they are noted.
        self._seen: dict[frozenset[str], int] = {}
        self._noted: dict[frozenset[str], float] = {}
        self._listening = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._polls = False
        self._pending: set[str] = set()
        self._teller: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------ sleeping

    def exchanging(self, queues: Sequence[str]) -> None:
        """An exchange about these queues begins: it sees whatever was rung before."""
        key = frozenset(queues)
        self._seen[key] = self.bell.count(key)

    async def wait(self, queues: Sequence[str], seconds: float) -> None:
        """Until something may be claimable. Comes early when nobody was told before that we sleep."""
        key = frozenset(queues)
        self._start_listening()
        if self.bell.count(key) > self._seen.get(key, 0):
            self._seen[key] = self.bell.count(key)
            return
        if self._polls or not self._listening.is_set():
            await self.bell.wait(key, min(seconds, POLL_SECONDS))
            return
        if time.monotonic() > self._noted.get(key, 0.0):
            was_noted = time.monotonic() < self._noted.get(key, 0.0) + NOTED_MS / 1000 - RENEW_SECONDS
            await self._note(key)
            if not was_noted:
                # Whatever was enqueued before this was not told: look once more.
                return
        await self.bell.wait(key, min(seconds, RENEW_SECONDS))
        self._seen[key] = self.bell.count(key)

    async def _note(self, key: frozenset[str]) -> None:
        began = time.monotonic()
        queues, listener = sorted(key), f"{self._name}-{hash(key) & 0xFFFFFFFF:08x}"
        text = self._statements("sleep")
        await self._connections.use(lambda connection: connection.execute(text, listener, queues, NOTED_MS))
        self._noted[key] = began + RENEW_SECONDS

    # ------------------------------------------------------------------------------------------------ telling

    def tell(self, queues: Iterable[str]) -> None:
        """There may be work: for those who wait here at once, for others after this call, several calls at a time."""
        queues = set(queues)
        self.bell.ring(queues)
        self._pending |= queues
        if self._teller is None:
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        text = f"SELECT {quoted(self._statements.schema)}.wake($1)"
        try:
            while self._pending:
                queues, self._pending = list(self._pending), set()
                await self._connections.use(lambda connection, queues=queues: connection.execute(text, queues))  # type: ignore[misc]
        except StoreError as error:
            # They look by themselves within five seconds.
            log.debug("sleeping workers could not be told of work: %s", error)
        finally:
            self._teller = None

    # ------------------------------------------------------------------------------------------------ listening

    def _start_listening(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        """Keep a listening connection; whenever one is made, anything may have happened before."""
        failed = 0
        while True:
            began = time.monotonic()
            try:
                works = await self._listen_once()
            except Exception as error:
                works = None
                log.debug("the connection that listens for work is gone: %s", error)
            finally:
                self._listening.clear()
                self._noted.clear()
            if works is False and not self._polls:
                self._polls = True
                log.warning(
                    "LISTEN does not work on this connection to PostgreSQL (a pooler in transaction mode?): "
                    "looking for work every %g s instead",
                    POLL_SECONDS,
                )
            self.bell.ring()
            failed = failed + 1 if time.monotonic() - began < 30 else 0
            await asyncio.sleep(AGAIN_SECONDS[min(failed, len(AGAIN_SECONDS) - 1)])

    async def _listen_once(self) -> bool:
        """Until the connection is gone; False where notifications do not come through at all."""
        ended = asyncio.Event()
        proven = asyncio.Event()
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await self._connect()
        try:
            connection.add_termination_listener(lambda _: ended.set())

            def heard(_connection: object, _pid: int, _channel: str, queue: object) -> None:
                if queue == f"?{self._name}":
                    proven.set()
                else:
                    self.bell.ring([str(queue)])

            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.add_listener(self._statements.channel, heard)
            while True:
                if not await self._prove(proven):
                    return False
                self._polls = False
                if not self._listening.is_set():
                    self._listening.set()
                    self.bell.ring()
                # A connection that went silent (a host that vanished) is noticed by asking it again.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PROVE_AGAIN_SECONDS):
                        await ended.wait()
                if ended.is_set():
                    return True
        finally:
            await close(connection)

    async def _prove(self, proven: asyncio.Event) -> bool:
        """Whether what is notified elsewhere is heard here."""
        proven.clear()
        text, name = "SELECT pg_notify($1, $2)", f"?{self._name}"
        channel = self._statements.channel
        await self._connections.use(lambda connection: connection.execute(text, channel, name))
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await proven.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop listening; what is still to be told, is."""
        if self._teller is not None:
            with contextlib.suppress(Exception):
                await self._teller
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
