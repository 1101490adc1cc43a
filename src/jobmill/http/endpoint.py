"""`POST /api/jobs/tick`: runs one tick at a time, and finishes it even if the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jobmill.core import limits
from jobmill.core.durations import Duration, to_ms
from jobmill.errors import InvalidValue
from jobmill.http import responses
from jobmill.http.auth import check_token, refusal
from jobmill.http.responses import Receive, Scope, Send, TickResponse

if TYPE_CHECKING:
    from jobmill.client.client import Client

log = logging.getLogger("jobmill")

DEFAULT_PATH = "/api/jobs/tick"


class TickEndpoint:
    """An ASGI app with one route. Each request runs up to `limit` due jobs of a client.

    With a token, requests must send it. Without one, only programs on this machine may send requests. One tick runs at
    a time. Requests that arrive meanwhile share the next tick and its summary. So at most `limit` jobs run in this
    process, and many requests never queue up many ticks. A tick continues when its client disconnects.

    Served alone, the endpoint opens the client when the server starts, and closes it when the server stops. An app in
    which it is mounted does not pass these events on. Then the first request opens the client; use
    `async with endpoint:` in the lifespan of that app to open and close it.
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
        self._token = None if token is None else check_token(token)
        self._stopping = False
        # Each tick has its own task, so that a cancelled request does not cancel it.
        self._running: asyncio.Task[TickResponse] | None = None
        self._next: asyncio.Task[TickResponse] | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def __aenter__(self) -> TickEndpoint:
        """Open the client, and accept requests."""
        await self.jobs.open()
        self._stopping = False
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop, and close the client."""
        await self.stop()
        await self.jobs.close()

    async def stop(self, timeout: Duration | None = None) -> None:
        """Start no more ticks, wait for the running tick, then cancel it and release its jobs without an attempt.

        `timeout` is how long the running tick may take (default: `shutdown_timeout`). A second call may shorten it.
        """
        self._stopping = True
        patience_s = self.shutdown_timeout_s if timeout is None else to_ms(timeout, "timeout") / 1000
        ticks = [tick for tick in (self._running, self._next) if tick is not None and not tick.done()]
        if not ticks:
            return
        log.info("stopping; the running tick has %g s to end", patience_s)
        _, late = await asyncio.wait(ticks, timeout=patience_s)
        if late:
            log.warning("the tick did not end within %g s; its jobs are released", patience_s)
            for tick in late:
                tick.cancel()
            await asyncio.wait(late)

    # ------------------------------------------------------------------------------------------------ ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI requires."""
        if scope["type"] == "http":
            response = self._refusal(scope) or await _read_body(receive) or await self._tick()
            await response.send(send, head=scope["method"] == "HEAD")
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            raise InvalidValue("scope.type", '"http", "lifespan" or "websocket"', scope["type"])

    def _refusal(self, scope: Scope) -> TickResponse | None:
        if not self._is_our_path(scope):
            return responses.NOT_FOUND
        if scope["method"] != "POST":
            return responses.NOT_POST
        return refusal(scope, self._token)

    def _is_our_path(self, scope: Scope) -> bool:
        """Whether this is the path of the endpoint. If it is mounted, some apps strip the root path and some do not."""
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"].removesuffix("/")
        return path in (self.path, root + self.path)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Open and close with the server."""
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

    async def _tick(self) -> TickResponse:
        """The response of the next tick."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_task(self._run(self._running), name="jobmill tick")
        tick = self._next
        # Neither shield nor plain await: requests get a response even if the tick is cancelled.
        await asyncio.wait([tick])
        if tick.cancelled():
            return responses.STOPPING if self._stopping else responses.FAILED
        return tick.result()

    async def _run(self, before: asyncio.Task[TickResponse] | None) -> TickResponse:
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


async def _read_body(receive: Receive) -> TickResponse | None:
    """Read the body to its end, so that the client reads the response. Returns an error response, or None."""
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
    """The path without the slash at its end, so that "/" is the path at which the endpoint is mounted."""
    if not isinstance(path, str) or not path.startswith("/") or any(char in path for char in "?#"):
        raise InvalidValue("path", f"a path such as {DEFAULT_PATH}", path)
    return path.removesuffix("/")
