"""The dashboard for WSGI servers, such as those of Flask and Django applications.

Its pages run in the event loop of `jobs.sync`, which starts with the first request, so that a server may fork before.
Streams would keep a thread of the server busy for every open tab: pages are loaded again every 30 seconds instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from jobmill.dashboard.app import Dashboard
from jobmill.dashboard.security import MAX_BODY
from jobmill.dashboard.view import WSGI_ENVIRON
from jobmill.errors import InvalidValue

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("jobmill")


def wsgi_app(dashboard: Dashboard, path: str = "", otherwise: WSGIApplication | None = None) -> WSGIApplication:
    """The dashboard as a WSGI app: alone, or below `path` of another app, which gets all other requests.

    Flask: `app.wsgi_app = wsgi_app(dashboard, "/jobs", app.wsgi_app)`. Django, in wsgi.py:
    `application = wsgi_app(dashboard, "/jobs", get_wsgi_application())`.
    """
    if path and (not path.startswith("/") or path.endswith("/")):
        raise InvalidValue("path", 'a path such as "/jobs"', path)
    if bool(path) != (otherwise is not None):
        raise InvalidValue("otherwise", "an app for all paths outside of `path`, together with `path`", otherwise)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        inside = environ.get("PATH_INFO", "")
        if otherwise is not None:
            if inside != path and not inside.startswith(f"{path}/"):
                return otherwise(environ, start_response)
            root = environ.get("SCRIPT_NAME", "") + path
            environ = {**environ, "SCRIPT_NAME": root, "PATH_INFO": inside.removeprefix(path)}
        scope, body = _scope(environ), _body(environ)
        start, parts = dashboard.jobs.sync(_answer(dashboard, scope, body))
        status = start["status"]
        phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        if status != 204 and not any(name == "content-type" for name, _ in headers):
            headers.append(("content-type", "text/plain; charset=utf-8"))  # WSGI asks for one, of redirects too
        start_response(f"{status} {phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else parts

    return application


async def _answer(dashboard: Dashboard, scope: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The start of a response, and its parts."""
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return requests.pop() if requests else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        await dashboard(scope, receive, send)
    except Exception:
        if not sent:
            raise
        log.exception("the dashboard failed")  # its answer says so
    return sent[0], [message.get("body", b"") for message in sent[1:]]


def _scope(environ: WSGIEnvironment) -> dict[str, Any]:
    """The request as ASGI has it. WSGI has the bytes of texts as Latin-1."""
    root = environ.get("SCRIPT_NAME", "").rstrip("/")
    headers = [(name[5:], value) for name, value in environ.items() if name.startswith("HTTP_")]
    headers += [(name, environ[name]) for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").rpartition("/")[2],
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "root_path": root.encode("latin-1").decode("utf-8", "replace"),
        "path": (root + environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "replace"),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [(name.lower().replace("_", "-").encode("latin-1"), one.encode("latin-1")) for name, one in headers],
        "client": (environ["REMOTE_ADDR"], 0) if environ.get("REMOTE_ADDR") else None,
        "server": (environ["SERVER_NAME"], int(environ["SERVER_PORT"])),
        WSGI_ENVIRON: environ,
    }


def _body(environ: WSGIEnvironment) -> bytes:
    """The body, read here because reading blocks. One that is too long is cut where that shows."""
    given = environ.get("CONTENT_LENGTH") or ""
    if not given and not environ.get("wsgi.input_terminated"):
        return b""  # nobody knows where it ends
    left = min(int(given), MAX_BODY + 1) if given.isdecimal() else MAX_BODY + 1
    parts: list[bytes] = []
    while left > 0 and (part := environ["wsgi.input"].read(min(left, 65_536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
