"""`--health PORT`: probes for a process manager and metrics for Prometheus, over HTTP.

The address is a port, or the path of a unix socket, on which a supervisor asks its processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.metrics.text import CONTENT_TYPE
from jobmill.runtime.watchdog import Watchdog

log = logging.getLogger("jobmill")

MAX_REQUEST = 8 * 1024
READ_DEADLINE_S = 5.0

#: A port, or the path of a unix socket.
Address: TypeAlias = int | str
#: Answers a path: what is wrong (nothing: 200, else 503), a text for Prometheus, or JSON.
View: TypeAlias = Callable[[], Awaitable["dict[str, Any] | str | Json"]]


class Json(msgspec.Struct, frozen=True):
    """An answer as it is."""

    body: Any
    status: int = 200


def worker_views(
    watchdog: Watchdog, not_ready: Callable[[], dict[str, Any]], metrics: Callable[[], str]
) -> dict[str, View]:
    """`/livez` fails while a loop is stuck, `/readyz` also while no jobs can be claimed."""

    async def livez() -> dict[str, Any]:
        stuck = {loop: round(seconds, 1) for loop, seconds in watchdog.stuck().items()}
        return {"stuck": stuck} if stuck else {}

    async def readyz() -> dict[str, Any]:
        # The error itself may name hosts and users; it is in the log.
        store = {} if watchdog.store_error is None else {"store": "unavailable"}
        return {**await livez(), **store, **not_ready()}

    async def text() -> str:
        return metrics()

    return {"/livez": livez, "/readyz": readyz, "/metrics": text}


class Health:
    """A small HTTP server that answers each path by its view."""

    def __init__(
        self,
        address: Address,
        views: Mapping[str, View],
        host: str = "127.0.0.1",
        *,
        other: Callable[[str, dict[str, str]], View | None] = lambda path, query: None,
        option: str = "health",
    ) -> None:
        #: The name of the option that has the address, for errors.
        self._option = option
        #: Finds the view of a path that is not in `views`, by path and query.
        self._other = other
        self.address = address
        #: 0 picks a free port; `start` replaces it with the port that it got. A socket has none.
        self.port = address if isinstance(address, int) else 0
        self._views = views
        self._host = host
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to serve; InvalidValue if the port cannot be bound."""
        try:
            if isinstance(self.address, str):
                await _check_unused(self.address)
                self._server = await asyncio.start_unix_server(self._serve, self.address, limit=MAX_REQUEST)
                return
            # Resolved here, because asyncio would start a thread for it, and a supervisor forks.
            found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
            hosts = list(dict.fromkeys(str(where[0]) for *_, where in found))
            self._server = await asyncio.start_server(self._serve, hosts, self.port, limit=MAX_REQUEST)
            self.port = self._server.sockets[0].getsockname()[1]
        except (OSError, OverflowError) as error:
            what = (
                "a path for a socket" if isinstance(self.address, str) else f"a port that can be bound on {self._host}"
            )
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidValue(self._option, what, self.address, why) from None

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
        path, _, query = target.partition("?")
        view = self._views.get(path) or self._other(path, dict(parse_qsl(query)))
        if view is None:
            return _response(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, headers="Allow: GET, HEAD\r\n")
        try:
            answer = await view()
        except StoreUnavailable as error:
            # As in /readyz: the error may name hosts and users.
            log.warning("%s cannot be answered, because the store is unavailable: %s", path, error)
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, {"ok": False, "store": "unavailable"})
        except Exception:
            log.exception("%s could not be answered; no job is affected", path)
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR)
        if isinstance(answer, Json):
            return _response(HTTPStatus(answer.status), answer.body, head=method == "HEAD")
        if isinstance(answer, str):
            return _response(HTTPStatus.OK, answer, head=method == "HEAD")
        status = HTTPStatus.SERVICE_UNAVAILABLE if answer else HTTPStatus.OK
        return _response(status, {"ok": not answer, **answer}, head=method == "HEAD")


async def ask(
    address: Address, path: str, host: str = "127.0.0.1", timeout: float = READ_DEADLINE_S
) -> tuple[int, bytes]:
    """Status and body of a health server's answer; OSError (a TimeoutError is one) without an answer."""
    async with asyncio.timeout(timeout):
        if isinstance(address, str):
            reader, writer = await asyncio.open_unix_connection(address)
        else:
            reader, writer = await asyncio.open_connection(host, address)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
    status = head.split(None, 2)[1:2]
    if not head.startswith(b"HTTP/1.") or not status or not status[0].isdigit():
        raise ConnectionError("the answer is not HTTP")
    return int(status[0]), body


async def _check_unused(path: str) -> None:
    """asyncio would replace the socket of another process."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        _, writer = await asyncio.open_unix_connection(path)
        writer.transport.abort()
        raise FileExistsError(0, "another process uses it")


def _response(status: HTTPStatus, body: object = None, *, head: bool = False, headers: str = "") -> bytes:
    """A response with a text as it is, or with JSON."""
    if isinstance(body, str):
        content, content_type = body.encode(errors="replace"), CONTENT_TYPE
    else:
        content = msgspec.json.encode({"ok": False, "error": status.phrase} if body is None else body)
        content_type = "application/json"
    text = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(content)}\r\n"
        f"{headers}"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return text.encode() + (b"" if head else content)
