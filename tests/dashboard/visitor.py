"""A visitor of a dashboard without a browser and without a network: requests go straight to the ASGI app."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode

from jobmill.dashboard import Dashboard

LOCAL = ("127.0.0.1", 50_000)


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        """The content, decoded."""
        return json.loads(self.text)

    @property
    def words(self) -> str:
        """What people read: the text of the page without tags, on one line."""
        body = re.sub(r"<(script|title)[^>]*>.*?</\1>", "", self.text, flags=re.DOTALL)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


class Visitor:
    """Sends requests with these headers, and keeps cookies."""

    def __init__(self, app: Any, *, base: str = "", client: tuple[str, int] | None = LOCAL, **headers: str) -> None:
        self.app = app
        self.base = base
        self.client = client
        self.headers = {"host": "127.0.0.1:8000", **{name.replace("_", "-"): text for name, text in headers.items()}}
        self.cookies: dict[str, str] = {}

    async def get(self, path: str, **headers: str) -> Answer:
        """GET; the path may have a query."""
        return await self.send("GET", path, b"", headers)

    async def json(self, path: str) -> Any:
        """The data of a page."""
        answer = await self.get(path, accept="application/json")
        assert answer.status == 200, answer
        return answer.json

    async def act(self, name: str, /, *, follow: bool = True, **fields: Any) -> Answer:
        """Send the form of an act as a page of the dashboard does; the page that it leads to."""
        answer = await self.post(f"/acts/{name}", **fields)
        if follow and answer.status == 303:
            return await self.get(answer.headers["location"].removeprefix(self.base))
        return answer

    async def post(self, path: str, _headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """POST a form from the same origin."""
        pairs = [
            (name, one) for name, value in fields.items() for one in (value if isinstance(value, list) else [value])
        ]
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "sec-fetch-site": "same-origin",
            **(_headers or {}),
        }
        return await self.send("POST", path, urlencode(pairs).encode(), headers)

    async def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """One request."""
        path, _, query = path.partition("?")
        path = path.partition("#")[0]
        given = {**self.headers, **(headers or {})}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.base + unquote(path),
            "raw_path": (self.base + path).encode(),
            "root_path": self.base,
            "query_string": query.partition("#")[0].encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": self.client,
            "server": ("127.0.0.1", 8000),
        }
        sent: list[dict[str, Any]] = []
        received = False

        async def receive() -> dict[str, Any]:
            nonlocal received
            if received:
                return {"type": "http.disconnect"}
            received = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start = sent[0]
        content = b"".join(message.get("body", b"") for message in sent[1:])
        names = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        for name, value in start["headers"]:
            if name == b"set-cookie":
                cookie, _, rest = value.decode().partition(";")[0].partition("=")
                self.cookies[cookie] = rest
        return Answer(start["status"], names, content.decode("utf-8", "replace"))


def visitor(dashboard: Dashboard, **about: Any) -> Visitor:
    """A visitor on this machine."""
    return Visitor(dashboard, **about)
