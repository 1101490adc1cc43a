"""`--health PORT`: says over HTTP whether this worker is alive and ready, for probes of a process manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from jobmill.errors import InvalidValue
from jobmill.runtime.watchdog import Watchdog

MAX_REQUEST = 8 * 1024
READ_DEADLINE_S = 5.0


class Health:
    """A small HTTP server. `/livez` fails while a loop is stuck, `/readyz` also while no jobs can be claimed."""

    def __init__(self, port: int, watchdog: Watchdog, ready: Callable[[], bool], host: str = "127.0.0.1") -> None:
        #: 0 picks a free port; `start` replaces it with the port that it got.
        self.port = port
        self._host = host
        self._watchdog = watchdog
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to serve; InvalidValue if the port cannot be bound."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=MAX_REQUEST)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidValue("health", f"a port that can be bound on {self._host}", self.port, why) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop to serve, and close open connections."""
        if self._server is None:
            return
        self._server.close()
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            # The timeout covers both directions: a client that does not read the response must not stay either.
            async with asyncio.timeout(READ_DEADLINE_S):
                writer.write(await self._response_to(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._requests.discard(task)

    async def _response_to(self, reader: asyncio.StreamReader) -> bytes:
        try:
            # Reads all headers, because closing with unread input would cut off the response.
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            with contextlib.suppress(ValueError):
                await reader.read(MAX_REQUEST * 2)
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except asyncio.IncompleteReadError:
            return _response(HTTPStatus.BAD_REQUEST)
        parts = head.partition(b"\r\n")[0].decode("latin-1").split()
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        method, target, _ = parts
        views = {"/livez": self._livez, "/readyz": self._readyz}
        view = views.get(target.partition("?")[0])
        if view is None:
            return _response(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, headers="Allow: GET, HEAD\r\n")
        wrong = view()
        status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
        return _response(status, {"ok": not wrong, **wrong}, head=method == "HEAD")

    def _livez(self) -> dict[str, Any]:
        """What is wrong; empty if nothing is."""
        stuck = {loop: round(seconds, 1) for loop, seconds in self._watchdog.stuck().items()}
        return {"stuck": stuck} if stuck else {}

    def _readyz(self) -> dict[str, Any]:
        wrong = self._livez()
        if self._watchdog.store_error is not None:
            # The error itself may name hosts and users; it is in the log.
            wrong["store"] = "unavailable"
        if not self._ready():
            wrong["ready"] = False
        return wrong


def _response(status: HTTPStatus, body: object = None, *, head: bool = False, headers: str = "") -> bytes:
    content = msgspec.json.encode({"ok": False, "error": status.phrase} if body is None else body)
    text = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n"
        f"{headers}"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return text.encode() + (b"" if head else content)
