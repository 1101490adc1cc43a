"""What the endpoint says: every answer that does not depend on what a tick did, and how any of them is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, structs

from jobmill.worker.tick import Tick

# ASGI's own words.
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

#: Of a request's body, which nobody looks at: so many bytes are read, in so many seconds, and no more.
MAX_BODY = 64 * 1024
BODY_DEADLINE_S = 5.0


class Answer(Struct, frozen=True):
    """A response, not yet sent."""

    status: HTTPStatus
    body: dict[str, Any]
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send, *, head: bool = False) -> None:
        """Send it, without its body to HEAD; who is gone by now has missed it, and that is all."""
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


def ticked(tick: Tick) -> Answer:
    """What a tick did."""
    return Answer(HTTPStatus.OK, {"ok": True, **structs.asdict(tick)})


def _refusal(status: HTTPStatus, why: str, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(status, {"ok": False, "error": why}, headers)


#: In these very words: other systems' clients know them.
FAILED = _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "Failed to run jobs tick")
NOT_FOUND = _refusal(HTTPStatus.NOT_FOUND, "there is nothing here")
NOT_POST = _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST", (b"allow", b"POST"))
NO_TOKEN = _refusal(
    HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer with the token", (b"www-authenticate", b"Bearer")
)
NOT_LOCAL = _refusal(
    HTTPStatus.FORBIDDEN,
    "without a token only programs on this machine may ask, and not through a proxy or a browser; configure a token",
)
CUT_SHORT = _refusal(HTTPStatus.BAD_REQUEST, "the request ended early")
TOO_SLOW = _refusal(HTTPStatus.REQUEST_TIMEOUT, f"expected the whole body within {BODY_DEADLINE_S:g} s")
TOO_LARGE = _refusal(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected no body, or one of at most {MAX_BODY} bytes, which is ignored"
)
STOPPING = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "stopping; ask again later")
