"""Requests as an ASGI server makes them, without the server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jobmill.http import TickEndpoint
from jobmill.http.responses import Message, Receive, Scope

TICK = "/api/jobs/tick"
LOOPBACK = ("127.0.0.1", 50000)
NOTHING_DONE = {"claimed": 0, "succeeded": 0, "retrying": 0, "failed": 0, "waiting": 0, "lost": 0}


@dataclass(frozen=True)
class Heard:
    """An answer, as it was sent."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        """What a refusal says; it says nothing else."""
        assert self.body.keys() == {"ok", "error"}
        assert self.body["ok"] is False
        return str(self.body["error"])


def scope(path: str = TICK, **said: Any) -> Scope:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "client": LOOPBACK,
        "server": ("127.0.0.1", 8000),
        **said,
    }


def receiving(*messages: Message) -> Receive:
    """The messages of a server, in order. Receiving more messages than these is an error."""
    waiting = iter(messages)

    async def receive() -> Message:
        return next(waiting)

    return receive


def body(*parts: bytes) -> Iterable[Message]:
    for number, part in enumerate(parts, 1):
        yield {"type": "http.request", "body": part, "more_body": number < len(parts)}


async def ask(endpoint: TickEndpoint, path: str = TICK, *, receive: Receive | None = None, **said: Any) -> Heard:
    """Make one request, by default a POST without a body from this machine."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await endpoint(scope(path, **said), receive or receiving(*body(b"")), send)
    start, content = sent
    assert (start["type"], content["type"]) == ("http.response.start", "http.response.body")
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert len(headers) == len(start["headers"])
    assert headers["content-type"] == "application/json"
    assert content.get("more_body", False) is False
    return Heard(start["status"], headers, content["body"])


def bearing(*values: str | bytes) -> list[tuple[bytes, bytes]]:
    """Authorization headers of these values."""
    return [(b"authorization", one.encode() if isinstance(one, str) else one) for one in values]
