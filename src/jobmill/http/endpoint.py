"""`POST /api/jobs/tick`: one tick at a time, whoever asks and however they go away."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jobmill.core import limits
from jobmill.core.durations import to_ms
from jobmill.errors import InvalidValue
from jobmill.handlers.options import Duration
from jobmill.http import responses
from jobmill.http.auth import Guard
from jobmill.http.responses import Answer, Receive, Scope, Send

if TYPE_CHECKING:
    from jobmill.client.client import Client

log = logging.getLogger("jobmill")

DEFAULT_PATH = "/api/jobs/tick"


class TickEndpoint:
    """An ASGI app of one route, which runs up to `limit` due jobs of a client when it is asked.

    With a token it serves whoever brings it, without one only programs on this machine. One tick runs at a time: who
    asks meanwhile waits for the next, and all who wait share it and its summary. So never more than `limit` jobs run
    here, and many who ask never make a long line of ticks. A tick that has begun goes on when its asker is gone.

    Served by itself it opens the client when the server starts, and closes it when the server ends. Mounted in another
    app, which is not told of either, it opens the client by itself; `async with endpoint:` around the life of that app
    does the rest.
    """

    def __init__(
        self,
        jobs: Client,
        *,
        token: str | None = None,
        limit: int = 10,
        path: str = DEFAULT_PATH,
        shutdown_timeout: Duration = "30s",
    ) -> None:
        self.jobs = jobs
        self.limit = limits.check_int(limit, "limit", 1, 10_000)
        self.path = _check_path(path)
        self.shutdown_timeout_s = to_ms(shutdown_timeout, "shutdown_timeout") / 1000
        self._guard = Guard(token)
        self._stopping = False
        # A tick is a task of its own, which nobody who waits for it can cancel.
        self._running: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def __aenter__(self) -> TickEndpoint:
        """Open the client, and take requests."""
        await self.jobs.open()
        self._stopping = False
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop, and close the client."""
        await self.stop()
        await self.jobs.close()

    async def stop(self, timeout: Duration | None = None) -> None:
        """Begin no more ticks, wait for the one that runs, then cancel it: its jobs are given back, counting nothing.

        `timeout` is how long it gets (default: `shutdown_timeout`). Stopping again with less hurries it up.
        """
        self._stopping = True
        patience_s = self.shutdown_timeout_s if timeout is None else to_ms(timeout, "timeout") / 1000
        ticks = [tick for tick in (self._running, self._next) if tick is not None and not tick.done()]
        if not ticks:
            return
        log.info("stopping; the tick that runs has %g s to end", patience_s)
        _, late = await asyncio.wait(ticks, timeout=patience_s)
        if late:
            log.warning("the tick did not end in %g s; its jobs are given back", patience_s)
            for tick in late:
                tick.cancel()
            await asyncio.wait(late)

    # ------------------------------------------------------------------------------------------------ ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI calls it."""
        if scope["type"] == "http":
            answer = self._refusal(scope) or await _drained(receive) or await self._tick()
            await answer.send(send, head=scope["method"] == "HEAD")
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            raise InvalidValue("scope.type", '"http", "lifespan" or "websocket"', scope["type"])

    def _refusal(self, scope: Scope) -> Answer | None:
        if not self._is_here(scope):
            return responses.NOT_FOUND
        if scope["method"] != "POST":
            return responses.NOT_POST
        return self._guard.refusal(scope)

    def _is_here(self, scope: Scope) -> bool:
        """Whether the path is ours; mounted, it is behind the root path, which some apps take off and some leave."""
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"].removesuffix("/")
        return path in (self.path, root + self.path)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The server's start and end."""
        while True:
            what = (await receive())["type"]
            try:
                await (self.__aenter__() if what == "lifespan.startup" else self.__aexit__())
            except Exception as error:
                log.exception("%s failed", what)
                await send({"type": f"{what}.failed", "message": f"{type(error).__name__}: {error}"})
                return
            await send({"type": f"{what}.complete"})
            if what == "lifespan.shutdown":
                return

    # ------------------------------------------------------------------------------------------------ ticks

    async def _tick(self) -> Answer:
        """What comes of the next tick."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_task(self._run(self._running), name="jobmill tick")
        tick = self._next
        # Neither shield nor plain await: if the tick is cancelled, whoever waits for it still gets an answer.
        await asyncio.wait([tick])
        if tick.cancelled():
            return responses.STOPPING if self._stopping else responses.FAILED
        return tick.result()

    async def _run(self, before: asyncio.Task[Answer] | None) -> Answer:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        if self._stopping:
            return responses.STOPPING
        try:
            return responses.ticked(await self.jobs.tick(self.limit))
        except Exception:
            log.exception("the tick failed")
            return responses.FAILED


async def _drained(receive: Receive) -> Answer | None:
    """Read a request to its end, so that its sender comes to read the answer; None when that went well."""
    size = 0
    try:
        async with asyncio.timeout(responses.BODY_DEADLINE_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return responses.CUT_SHORT
                size += len(message.get("body", b""))
                if size > responses.MAX_BODY:
                    return responses.TOO_LARGE
                if not message.get("more_body", False):
                    return None
    except TimeoutError:
        return responses.TOO_SLOW


def _check_path(path: object) -> str:
    """Without the slash at its end, so that "/" is the very place where the endpoint is mounted."""
    if not isinstance(path, str) or not path.startswith("/") or any(char in path for char in "?#"):
        raise InvalidValue("path", f"a path such as {DEFAULT_PATH}", path)
    return path.removesuffix("/")
