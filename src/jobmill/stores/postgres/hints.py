"""Hints about jobs that end or are cancelled: notifications on a channel of their own, which all listeners hear.

A process that cancels jobs notifies in the same transaction. A process that waits for the end of a job notifies workers
that it waits for jobs of this queue. For a while, they then notify it of all jobs of the queue that they settle. So
nobody pays for hints that nobody waits for: no statement of an exchange differs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from jobmill.stores.common.chunks import chunks
from jobmill.stores.common.job_hints import JobHints
from jobmill.stores.postgres.connection.connector import Connection

if TYPE_CHECKING:
    from jobmill.core.values import Settlement
    from jobmill.stores.postgres.context import PostgresContext

log = logging.getLogger("jobmill.postgres")

#: How long workers notify a process that waits, and after what time it notifies them that it still waits.
AWAITED_SECONDS = 15.0
RENEW_SECONDS = 5.0
#: A notification of PostgreSQL has less than 8,000 bytes.
MAX_BYTES = 7_500

_encode = msgspec.json.Encoder().encode


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification: ids of jobs that were cancelled or have ended, or queues with jobs that somebody waits for."""

    cancelled: Sequence[str] = ()
    ended: Sequence[str] = ()
    awaited: Sequence[str] = ()


_decode = msgspec.json.Decoder(Hint).decode


async def wait_for_cancel(context: PostgresContext, ids: Collection[str], until_ms: int) -> None:
    """See the port. Where notifications do not arrive, the heartbeat notices a cancel."""
    notifications = context.loops.here().notifications
    notifications.listen()
    await notifications.hints.cancels.wait(ids, (until_ms - context.clock.now()) / 1000)


async def wait_for_end(context: PostgresContext, id: str, queue: str, until_ms: int) -> None:
    """See the port. Where notifications do not arrive, the caller queries the job at the end of its time."""
    notifications = context.loops.here().notifications
    notifications.listen()
    if notifications.is_listening and notifications.hints.has_to_announce(queue):
        notifications.send_hint("awaited", [queue])
    await notifications.hints.ends.wait((id,), (until_ms - context.clock.now()) / 1000)


async def send(connection: Connection, channel: str, hint: tuple[str, Sequence[str]]) -> None:
    """Notify all listeners of the values of one field, in as many notifications as they need."""
    field, values = hint
    for part in chunks(values, len(values), MAX_BYTES, lambda value: len(_encode(value)) + 1):
        await connection.execute("SELECT pg_notify($1, $2)", channel, _encode({field: part}).decode())


class LoopHints:
    """What one event loop waits for, and what it knows of others that wait."""

    def __init__(self) -> None:
        self.cancels = JobHints()
        self.ends = JobHints()
        #: By queue: until when somebody waits for the end of its jobs.
        self.awaited: dict[str, float] = {}
        #: By queue: when others were last notified that this loop waits.
        self._announced: dict[str, float] = {}

    def heard(self, payload: object) -> None:
        """Take a notification."""
        try:
            hint = _decode(str(payload))
        except msgspec.DecodeError as error:
            log.debug("a notification was not understood: %s", error)
            return
        for queue in hint.awaited:
            self.awaited[queue] = time.monotonic() + AWAITED_SECONDS
        self.cancels.tell(hint.cancelled)
        self.ends.tell((*hint.cancelled, *hint.ended))

    def missed(self) -> None:
        """Notifications may have been missed: wake all, and announce again what is waited for."""
        self._announced.clear()
        self.cancels.tell()
        self.ends.tell()

    def has_to_announce(self, queue: str) -> bool:
        """Whether others must be notified that this loop waits for jobs of a queue; True is given once."""
        now = time.monotonic()
        if now < self._announced.get(queue, 0.0) + RENEW_SECONDS:
            return False
        self._announced[queue] = now
        return True

    def awaited_ends(self, settled: Iterable[Settlement]) -> list[str]:
        """The ids of final jobs that somebody may wait for."""
        now = time.monotonic()
        self.awaited = {queue: until for queue, until in self.awaited.items() if until > now}
        return [one.lease.id for one in settled if one.state != "waiting" and one.lease.queue in self.awaited]
