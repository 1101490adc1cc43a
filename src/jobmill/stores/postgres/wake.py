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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.postgres.connection.pool import CONNECT_SECONDS, Connection, Connections, close
from jobmill.stores.postgres.statements import Statements, quoted

log = logging.getLogger("jobmill.postgres")

# How long a sleeper is told of work, and when it is noted again.
NOTED_MS = 15_000
RENEW_SECONDS = 7.0
# Work that is made within this time of the last telling is told together.
BETWEEN_SECONDS = 0.005
# How long a store that is closed may take to tell what it has not told yet.
LAST_TELL_SECONDS = 1.0
# How long an answer to our own notification may take; behind a pooler it never comes.
PROBE_SECONDS = 2.0
PROVE_AGAIN_SECONDS = 20.0
POLL_SECONDS = 0.5
# A listener that was lost is made again after so long; and again, if that does not work.
AGAIN_SECONDS = (0.2, 1.0, 5.0, 15.0, 60.0)


class Bell:
    """Counts how often each queue was rung, and wakes who listens for one of them."""

    def __init__(self) -> None:
        self._rings: dict[str, int] = {}
        self._all = 0
        self._listening: set[tuple[frozenset[str], asyncio.Event]] = set()

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
        for wanted, event in self._listening:
            if rung is None or not rung.isdisjoint(wanted):
                event.set()

    @contextlib.contextmanager
    def heard(self, queues: frozenset[str]) -> Iterator[asyncio.Event]:
        """An event that is set when one of these is rung, from now on."""
        ear = (queues, asyncio.Event())
        self._listening.add(ear)
        try:
            yield ear[1]
        finally:
            self._listening.discard(ear)


class Deaf(Exception):
    """What is notified does not come through to who listens."""


class Waking:
    """One listener, and one teller, of one event loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        connections: Connections,
        statements: Statements,
        pooled: Callable[[], bool | None],
    ) -> None:
        self._connect = connect
        self._connections = connections
        self._statements = statements
        self._pooled = pooled
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
        self._hurry = asyncio.Event()
        self._closed = False

    # ------------------------------------------------------------------------------------------------ sleeping

    def exchanging(self, queues: Sequence[str]) -> None:
        """An exchange about these queues begins: it sees whatever was rung before."""
        key = frozenset(queues)
        self._seen[key] = self.bell.count(key)

    async def wait(self, queues: Sequence[str], seconds: float) -> None:
        """Until something may be claimable. Comes early when nobody was told before that we sleep."""
        key = frozenset(queues)
        self._start_listening()
        with self.bell.heard(key) as rung:
            if self.bell.count(key) <= self._seen.get(key, 0) and not self._closed:
                await self._sleep(key, rung, seconds)
            self._seen[key] = self.bell.count(key)

    async def _sleep(self, key: frozenset[str], rung: asyncio.Event, seconds: float) -> None:
        if self._polls or not self._listening.is_set():
            await _within(min(seconds, POLL_SECONDS), rung)
            return
        noted_until = self._noted.get(key, 0.0)
        if time.monotonic() > noted_until:
            was_noted = time.monotonic() < noted_until + NOTED_MS / 1000 - RENEW_SECONDS
            await self._note(key)
            if not was_noted:
                # Whatever was enqueued before this was not told: look once more.
                return
        await _within(min(seconds, RENEW_SECONDS), rung)

    async def _note(self, key: frozenset[str]) -> None:
        began = time.monotonic()
        queues, listener = sorted(key), f"{self._name}-{hash(key) & 0xFFFFFFFF:08x}"
        text = self._statements("sleep")
        await self._connections.use(lambda connection: connection.execute(text, listener, queues, NOTED_MS))
        # Unless the listener was lost meanwhile: what is told then is heard by nobody.
        if self._listening.is_set():
            self._noted[key] = began + RENEW_SECONDS

    # ------------------------------------------------------------------------------------------------ telling

    @property
    def has_untold(self) -> bool:
        """Whether somebody in another process may still have to be told."""
        return bool(self._pending) or (self._teller is not None and not self._teller.done())

    def tell(self, queues: Iterable[str]) -> None:
        """There may be work: for those who wait here at once, for others after this call, several calls at a time."""
        queues = set(queues)
        self.bell.ring(queues)
        self._pending |= queues
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while self._pending:
            await self._tell_pending()
            await _within(BETWEEN_SECONDS, self._hurry)

    async def _tell_pending(self) -> None:
        queues, self._pending = self._pending, set()
        text = f"SELECT {quoted(self._statements.schema)}.wake($1)"
        try:
            await self._connections.use(lambda connection: connection.execute(text, list(queues)))
        except StoreError as error:
            # They look by themselves within five seconds.
            log.debug("sleeping workers could not be told of work: %s", error)
        except asyncio.CancelledError:
            self._pending |= queues
            raise

    async def tell_now(self) -> None:
        """Tell what is still to be told, unless it takes too long."""
        self._hurry.set()
        try:
            async with asyncio.timeout(LAST_TELL_SECONDS):
                if self._teller is not None:
                    # It was cancelled where the loop is about to end, maybe before it began.
                    await asyncio.wait([self._teller])
                if self._pending:
                    await self._tell_pending()
        except TimeoutError as error:
            log.debug("sleeping workers could not be told of work in time: %r", error)
        finally:
            self._hurry.clear()

    # ------------------------------------------------------------------------------------------------ listening

    def _start_listening(self) -> None:
        if (self._listener is None or self._listener.done()) and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        """Keep a listening connection; whenever one is made or lost, anything may have happened before."""
        failed = 0
        while True:
            try:
                await self._listen_once()
            except Deaf:
                self._poll_instead()
            except Exception as error:
                log.debug("the connection that listens for work is gone: %s", error)
            finally:
                failed = 0 if self._listening.is_set() else failed + 1
                self._listening.clear()
                self._noted.clear()
                self.bell.ring()
            await asyncio.sleep(AGAIN_SECONDS[min(failed, len(AGAIN_SECONDS) - 1)])

    def _poll_instead(self) -> None:
        if not self._polls:
            self._polls = True
            log.warning(
                "LISTEN does not work on this way to PostgreSQL (a pooler?): looking for work every %g s instead",
                POLL_SECONDS,
            )

    async def _listen_once(self) -> None:
        """Until the connection is gone; Deaf where notifications do not come through at all."""
        # In transaction mode now and then one would come by chance; and one mode cannot be told from the other.
        if self._pooled():
            raise Deaf
        ended = asyncio.Event()
        proven = asyncio.Event()
        connection = await self._connect()
        try:
            if self._pooled():
                raise Deaf
            connection.add_termination_listener(lambda _: ended.set())

            def heard(_connection: object, _pid: int, _channel: str, queue: object) -> None:
                if queue == f"?{self._name}":
                    proven.set()
                else:
                    self.bell.ring([str(queue)])

            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.add_listener(self._statements.channel, heard)
            if not await self._prove(proven):
                raise Deaf
            self._polls = False
            self._listening.set()
            self.bell.ring()
            while not await _within(PROVE_AGAIN_SECONDS, ended):
                # A connection that went silent (a host that vanished) is noticed by asking it again.
                if not await self._prove(proven):
                    raise StoreUnavailable("it went silent")
        finally:
            await close(connection)

    async def _prove(self, proven: asyncio.Event) -> bool:
        """Whether what is notified elsewhere is heard here."""
        proven.clear()
        text, name = "SELECT pg_notify($1, $2)", f"?{self._name}"
        channel = self._statements.channel
        await self._connections.use(lambda connection: connection.execute(text, channel, name))
        return await _within(PROBE_SECONDS, proven)

    async def close(self) -> None:
        """Stop listening, wake who sleeps here; what is still to be told, is."""
        self._closed = True
        self.bell.ring()
        if self._listener is not None:
            self._listener.cancel()
        await asyncio.gather(self.tell_now(), *([self._listener] if self._listener else []), return_exceptions=True)
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.gather(self._teller, return_exceptions=True)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for an event, or until the time is over; whether it came."""
    # Not wait_for, which forgets a cancellation that comes together with what it waits for (Python 3.11).
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
