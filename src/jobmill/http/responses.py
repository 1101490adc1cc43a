"""The responses of the endpoint: the summary of a tick, and one constant for each error."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, structs

from jobmill.worker.tick import Tick

# The names of ASGI.
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

#: The body of a request is read and ignored, up to this number of bytes and seconds.
MAX_BODY = 64 * 1024
BODY_DEADLINE_S = 5.0


class TickResponse(Struct, frozen=True):
    """A response that is not sent yet."""

    status: HTTPStatus
    body: dict[str, Any]
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send, *, head: bool = False) -> None:
        """Send the response, without its body for HEAD. A client that has disconnected is no error."""
        content = msgspec.json.encode(self.body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"cache-control", b"no-store"),
            *self.headers,
        ]
        with contextlib.suppress(OSError):
            await send({"type": "http.response.start", "status": self.status.value, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if head else content})


def ticked(tick: Tick) -> TickResponse:
    """The summary of a tick."""
    return TickResponse(HTTPStatus.OK, {"ok": True, **structs.asdict(tick)})


def _refusal(status: HTTPStatus, why: str, *headers: tuple[bytes, bytes]) -> TickResponse:
    return TickResponse(status, {"ok": False, "error": why}, headers)


#: Exactly this text: clients of other systems rely on it.
FAILED = _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "Failed to run jobs tick")
NOT_FOUND = _refusal(HTTPStatus.NOT_FOUND, "not found")
NOT_POST = _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST", (b"allow", b"POST"))
NO_TOKEN = _refusal(
    HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer with the token", (b"www-authenticate", b"Bearer")
)
NOT_LOCAL = _refusal(
    HTTPStatus.FORBIDDEN,
    "without a token only programs on this machine may send requests, without a proxy or a browser; configure a token",
)
CUT_SHORT = _refusal(HTTPStatus.BAD_REQUEST, "the request ended early")
TOO_SLOW = _refusal(HTTPStatus.REQUEST_TIMEOUT, f"expected the whole body within {BODY_DEADLINE_S:g} s")
TOO_LARGE = _refusal(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected no body, or one of at most {MAX_BODY} bytes, which is ignored"
)
STOPPING = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "stopping; try again later")
