"""Waking sleeping workers with LISTEN and NOTIFY. If LISTEN does not work, workers poll.

A worker that is about to sleep adds a row to the table `sleepers`, and then queries for jobs once more. A process that
adds a job reads this table after its commit, and sends NOTIFY if a worker sleeps. So either the process sees the row of
the worker, or the worker sees the job. A notification can still be lost, if a connection breaks. For this case each
worker queries for jobs every five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.common.bell import Bell
from jobmill.stores.postgres.connection.connector import CONNECT_SECONDS, Connector, close
from jobmill.stores.postgres.connection.pool import ConnectionPool
from jobmill.stores.postgres.hints import LoopHints, send
from jobmill.stores.postgres.statements import Statements

if TYPE_CHECKING:
    from jobmill.stores.postgres.context import PostgresContext

log = logging.getLogger("jobmill.postgres")

# How long the row of a sleeper in the table is valid, and after what time the sleeper renews it.
NOTED_MS = 15_000
RENEW_SECONDS = 7.0
# How long the table keeps a row that is no longer valid.
FORGET_MS = 60_000
# The pause between two notifications. One notification covers all queues that get jobs during the pause.
BETWEEN_SECONDS = 0.005
# The same after a notification for queues where no worker sleeps. A busy worker that releases jobs with each exchange
# would otherwise look for sleepers every 5 ms: draining jobs of which each releases one took 52.9 us of CPU, client and
# server, a job, and 50.2 with the longer pause. A worker counts as asleep for some seconds after it was.
BETWEEN_AWAKE_SECONDS = 0.025
# How long closing a store may take for notifications that are not sent yet.
LAST_NOTIFY_SECONDS = 1.0
# A probe is a notification that this process sends to its own listener. It must arrive within this time. Behind a
# pooler it never arrives.
PROBE_SECONDS = 2.0
PROBE_AGAIN_SECONDS = 20.0
POLL_SECONDS = 0.5
# Pauses before a lost listener connects again. The last pause is used for all further attempts.
RECONNECT_SECONDS = (0.2, 1.0, 5.0, 15.0, 60.0)


async def wait_for_work(context: PostgresContext, queues: Sequence[str], until_ms: int) -> None:
    if (seconds := (until_ms - context.clock.now()) / 1000) > 0:
        await context.loops.here().notifications.wait(queues, seconds)


class NotHeard(Exception):
    """Notifications do not reach the listener."""


class WorkNotifications:
    """The listener and the notifier of one event loop."""

    def __init__(self, connector: Connector, pool: ConnectionPool, statements: Statements) -> None:
        self._connector = connector
        self._pool = pool
        self._statements = statements
        self._name = secrets.token_hex(8)
        self.bell = Bell()
        self.hints = LoopHints()
        # By set of queues: the number of rings when the last exchange began; and until when the row is valid.
        self._seen: dict[frozenset[str], int] = {}
        self.noted_until: dict[frozenset[str], float] = {}
        #: Whether notifications reach this loop now.
        self.is_listening = False
        self._listener: asyncio.Task[None] | None = None
        self._polls = False
        self._pending: set[str] = set()
        #: Hints that are not sent yet: values by the field of a Hint.
        self._pending_hints: dict[str, list[str]] = {}
        # Tasks of their own, because they pause for different times.
        self._notifier: asyncio.Task[None] | None = None
        self._hinter: asyncio.Task[None] | None = None
        self._closed = False

    # ------------------------------------------------------------------------------------------------ sleep

    def exchange_begins(self, queues: Sequence[str]) -> None:
        """Remember the number of rings: an exchange that begins now sees all jobs that these rings announced."""
        key = frozenset(queues)
        self._seen[key] = self.bell.count(key)

    async def wait(self, queues: Sequence[str], seconds: float) -> None:
        """Wait until there may be a job.

        Return at once if the row in the table is new: the caller must query once more before it sleeps.
        """
        key = frozenset(queues)
        self.listen()
        seen = self._seen.setdefault(key, 0)
        if self.bell.count(key) == seen and not self._closed:
            max_seconds = await self._note(key) if self.is_listening else POLL_SECONDS
            await self.bell.wait(key, min(seconds, max_seconds), seen)
        self._seen[key] = self.bell.count(key)

    async def _note(self, key: frozenset[str]) -> float:
        """Make sure that the table has a valid row for this sleeper. Return how long it may sleep."""
        now, until = time.monotonic(), self.noted_until.get(key, 0.0)
        if now <= until:
            return RENEW_SECONDS
        parameters = (f"{self._name}-{hash(key) & 0xFFFFFFFF:08x}", sorted(key), NOTED_MS, FORGET_MS)
        text = self._statements("sleep")
        await self._pool.use(lambda connection: connection.execute(text, *parameters))
        # If the listener was lost in the meantime, notifications do not arrive.
        if self.is_listening:
            self.noted_until[key] = now + RENEW_SECONDS
        # If there was no valid row, no notification was sent for jobs that were enqueued before.
        was_valid = now < until + NOTED_MS / 1000 - RENEW_SECONDS
        return RENEW_SECONDS if was_valid else 0.0

    # ------------------------------------------------------------------------------------------------ notify

    def notify(self, queues: Iterable[str]) -> None:
        """Report that there may be jobs: at once to sleepers of this loop, soon to sleepers of other processes."""
        queues = set(queues)
        self.bell.ring(queues)
        self._pending |= queues
        if self._notifier is None or self._notifier.done():
            self._notifier = asyncio.get_running_loop().create_task(self._send())

    def send_hint(self, field: str, values: Sequence[str]) -> None:
        """Notify all listeners soon of a hint: values of one field."""
        self._pending_hints.setdefault(field, []).extend(values)
        if self._hinter is None or self._hinter.done():
            self._hinter = asyncio.get_running_loop().create_task(self._send_hints())

    async def _send(self) -> None:
        while self._pending:
            someone_sleeps = await self._send_pending()
            await asyncio.sleep(BETWEEN_SECONDS if someone_sleeps else BETWEEN_AWAKE_SECONDS)

    async def _send_hints(self) -> None:
        channel = self._statements.hints_channel
        while self._pending_hints:
            hints, self._pending_hints = self._pending_hints, {}
            try:
                for hint in hints.items():
                    await self._pool.use(partial(send, channel=channel, hint=hint))
            except StoreError as error:
                # A caller that waits queries the job soon anyway.
                log.debug("others could not be notified of the end of jobs: %s", error)
            await asyncio.sleep(BETWEEN_SECONDS)

    async def _send_pending(self) -> bool:
        """Notify workers that sleep; whether there are any."""
        queues, self._pending = self._pending, set()
        text = self._statements("wake_sleepers")
        try:
            return bool(await self._pool.use(lambda connection: connection.fetch(text, list(queues))))
        except StoreError as error:
            # Sleeping workers query for jobs within five seconds anyway.
            log.debug("sleeping workers could not be notified of work: %s", error)
            return True
        except asyncio.CancelledError:
            self._pending |= queues
            raise

    async def send_now(self) -> None:
        """Send notifications that are not sent yet, unless that takes too long."""
        try:
            async with asyncio.timeout(LAST_NOTIFY_SECONDS):
                if sending := [task for task in (self._notifier, self._hinter) if task is not None]:
                    # If the loop is about to end, these tasks were cancelled, perhaps before they began.
                    await asyncio.wait(sending)
                if self._pending:
                    await self._send_pending()
        except TimeoutError as error:
            log.debug("sleeping workers could not be notified of work in time: %r", error)

    # ------------------------------------------------------------------------------------------------ listen

    def listen(self) -> None:
        """Keep a connection that listens from now on."""
        if not self._closed and (self._listener is None or self._listener.done()):
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        """Keep a connection that listens. Ring whenever it is made or lost: a notification may have been missed."""
        failures = 0
        while True:
            try:
                await self._listen_once()
            except NotHeard:
                # A process that only waits for results queries them anyway.
                if self._seen and not self._polls:
                    self._polls = True
                    log.warning(
                        "LISTEN does not work on this connection to PostgreSQL (a pooler?): "
                        "workers query for jobs every %g s",
                        POLL_SECONDS,
                    )
            except Exception as error:
                log.debug("the connection that listens for work is lost: %s", error)
            finally:
                failures = 0 if self.is_listening else failures + 1
                self.is_listening = False
                self.noted_until.clear()
                self.bell.ring()
                self.hints.missed()
            await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])

    async def _listen_once(self) -> None:
        """Listen until the connection is lost. Raise NotHeard if notifications never arrive."""
        # Behind a pooler in transaction mode, some notifications arrive by chance. A probe cannot detect this mode.
        if self._connector.pooled:
            raise NotHeard
        ended = asyncio.Event()
        probed = asyncio.Event()
        connection = await self._connector.connect()
        try:
            if self._connector.pooled:
                raise NotHeard
            connection.add_termination_listener(lambda _: ended.set())

            def heard(_connection: object, _pid: int, _channel: str, queue: object) -> None:
                if queue == f"?{self._name}":
                    probed.set()
                else:
                    self.bell.ring([str(queue)])

            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.add_listener(self._statements.channel, heard)
                await connection.add_listener(self._statements.hints_channel, lambda *heard: self.hints.heard(heard[3]))
            if not await self._probe(probed):
                raise NotHeard
            self._polls, self.is_listening = False, True
            self.bell.ring()
            self.hints.missed()
            while not await _happens(ended, PROBE_AGAIN_SECONDS):
                # A further probe detects a connection without a server, for example after its host has failed.
                if not await self._probe(probed):
                    raise StoreUnavailable("it went silent")
        finally:
            await close(connection)

    async def _probe(self, probed: asyncio.Event) -> bool:
        """Whether the listener receives a notification that another connection sends."""
        probed.clear()
        channel, name = self._statements.channel, f"?{self._name}"
        await self._pool.use(lambda connection: connection.execute("SELECT pg_notify($1, $2)", channel, name))
        return await _happens(probed, PROBE_SECONDS)

    async def close(self) -> None:
        """Stop listening, wake the sleepers of this loop, and send what is not sent yet."""
        self._closed = True
        self.bell.ring()
        self.hints.missed()
        if self._listener is not None:
            self._listener.cancel()
        await asyncio.gather(self.send_now(), *([self._listener] if self._listener else []), return_exceptions=True)
        for task in (self._notifier, self._hinter):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most this long. Return whether it was set."""
    # asyncio.wait_for of Python 3.11 loses a cancellation that arrives together with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
