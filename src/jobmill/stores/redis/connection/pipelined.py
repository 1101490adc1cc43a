"""One connection: commands go out at once, and replies are matched to them in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import hiredis

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection.errors import code_of, failure

# Shorter than the default lease, longer than any verb takes on a healthy server.
CALL_SECONDS = 10.0

WAS_CLOSED = "the store was closed"

Word: TypeAlias = str | bytes | int | float

#: A command as it is sent.
pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # of any length

#: hiredis has no whole reply yet. None is a reply.
_NOT_YET = object()
#: After these the server is of no more use, though it answers: another one takes the writes.
_ENDS = ("READONLY", "UNBLOCKED")

#: What is awaited: by whom, until when, for how long, how many replies (None: one, by itself).
_Awaited: TypeAlias = "tuple[asyncio.Future[Any], float, float, int | None]"


class Line(asyncio.Protocol):
    """Takes over a transport that is connected and authenticated. Of one event loop, like all that it holds.

    A call is a write, a future and an entry in a queue: no pool, no stream to drain, neither task nor timer of its own.
    EVALSHA of `return 1`, p50 of 20,000 one after the other: 33 us, where redis-py's execute_command takes 80 to 107,
    and a protocol that does nothing but this 30. On uvloop: 27, where those take 68 to 78, and 24.
    """

    def __init__(self, writer: asyncio.StreamWriter, url: str, host: str = "") -> None:
        # Kept, because it closes its transport when it is collected.
        self._writer = writer
        self._transport = writer.transport
        self._url = url
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._awaited: deque[_Awaited] = deque()
        #: Those that have come of several that are wanted together.
        self._replies: list[Any] = []
        self._watchdog: asyncio.TimerHandle | None = None
        self._watched_until = 0.0
        self._lost = self._loop.create_future()
        #: Why it cannot be used any more; None as long as it can.
        self.ended: str | None = None
        self._transport.set_protocol(self)

    # ------------------------------------------------------------------------------------------------ out

    def send(self, data: bytes, count: int | None = None, seconds: float | None = None) -> asyncio.Future[Any]:
        """Write packed commands. Their reply; or `count` replies in a list, errors among them. Waiters may give up.

        A reply that is not there in so many seconds (default: CALL_SECONDS) ends the line.
        """
        if self.ended is not None:
            raise StoreUnavailable(self.ended)
        if seconds is None:
            seconds = CALL_SECONDS
        future = self._loop.create_future()
        # Not the loop's time: uvloop's is that of when it last looked.
        deadline = time.monotonic() + seconds
        self._awaited.append((future, deadline, seconds, count))
        self._transport.write(data)
        if self._watchdog is None or self._watched_until > deadline:
            self._watch_for(seconds)
        return future

    def _watch_for(self, seconds: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watched_until = time.monotonic() + seconds
        self._watchdog = self._loop.call_later(seconds, self._watch)

    def _watch(self) -> None:
        """One timer for all: replies come in order, so the first that is awaited is the one that is late."""
        self._watchdog = None
        if not self._awaited:
            return
        _, deadline, seconds, _ = self._awaited[0]
        left = deadline - time.monotonic()
        if left > 0:
            self._watch_for(left)
        else:
            self.end(f"Redis at {self._url} did not answer within {seconds:g} s")

    # ------------------------------------------------------------------------------------------------ in

    def data_received(self, data: bytes) -> None:
        """Replies have come, or parts of them."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                if self._awaited[0][3] is None:
                    future = self._awaited.popleft()[0]
                    if not future.done():
                        self._answer(future, reply)
                else:
                    self._collect(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.end(f"what answers at {self._url} is not Redis, or out of step: {error!r}")

    def _answer(self, future: asyncio.Future[Any], reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            future.set_exception(self._failure(reply))
        else:
            future.set_result(reply)

    def _collect(self, reply: Any) -> None:
        self._replies.append(self._failure(reply) if isinstance(reply, hiredis.ReplyError) else reply)
        future, _, _, count = self._awaited[0]
        if len(self._replies) == count:
            self._awaited.popleft()
            replies, self._replies = self._replies, []
            if not future.done():
                future.set_result(replies)

    def _failure(self, reply: hiredis.ReplyError) -> StoreError:
        said = str(reply)
        error = failure(said, self._url, self._host)
        if code_of(said) in _ENDS and self.ended is None:
            # Not before what has come is read: others may have got their answers.
            self.ended = str(error)
            self._loop.call_soon(self.end, self.ended)
        return error

    # ------------------------------------------------------------------------------------------------ the end

    def eof_received(self) -> None:
        """Nothing more will come; the transport closes itself."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self.end(f"Redis at {self._url} closed the connection" + (f": {error}" if error else ""))
        if not self._lost.done():
            self._lost.set_result(None)

    def end(self, why: str) -> None:
        """Break off: whoever waits for a reply gets StoreUnavailable, and so does everybody who comes later."""
        self.ended = self.ended or why
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._transport.abort()
        while self._awaited:
            future = self._awaited.popleft()[0]
            if not future.done():
                future.set_exception(StoreUnavailable(self.ended))

    async def lost(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._lost)

    def abandon(self) -> None:
        """End, when the loop does not run: its sockets are closed when they are collected."""
        self.ended = self.ended or WAS_CLOSED
        with contextlib.suppress(RuntimeError):
            self._transport.abort()
