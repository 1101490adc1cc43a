"""The dashboard inside other applications: ASGI apps at any path, and WSGI (Django, Flask; gunicorn, wsgiref)."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.dashboard.security import MAX_BODY
from jobmill.dashboard.wsgi import wsgi_app
from jobmill.errors import InvalidValue
from tests.dashboard.visitor import Answer, Visitor
from tests.kit.places import free_port
from tests.kit.serve import serve

SAME = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


def ask(port: int, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    """A request over a real socket."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        given = {name.replace("_", "-"): one for name, one in headers.items()}
        connection.request(method, path, body, given, encode_chunked="transfer-encoding" in given)
        response = connection.getresponse()
        names = {name.lower(): one for name, one in response.getheaders()}
        return Answer(response.status, names, response.read().decode())
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------------- ASGI


@pytest.mark.parametrize("path", ["/jobs", "/a/b/jobs", "/jöbs"])
async def test_it_is_mounted_at_any_path_and_opens_by_itself(path: str) -> None:
    """A mounted app gets no lifespan events, and this client is not open."""
    jobs = jobmill.connect("memory://")
    app = Starlette(routes=[Mount(path, Dashboard(jobs)), Route("/", lambda _: PlainTextResponse("the shop"))])
    try:
        visitor = Visitor(app)
        assert (await visitor.get("/")).text == "the shop"
        page = await visitor.get(f"{path}/queues")
        assert (page.status, f'href="{path}/workers"' in page.text or "%C3%B6" in page.text) == (200, True)
        assert (await visitor.get(path)).status in (200, 307, 404)
        answer = await visitor.post(f"{path}/acts/pause", queue="mail", back=f"{path}/queues")
        assert answer.headers["location"].startswith(f"{path.replace('ö', '%C3%B6')}/queues?done=")
        assert "Queue mail is paused." in (await visitor.get(answer.headers["location"])).words
    finally:
        await jobs.close()


async def test_two_dashboards_in_one_app(jobs: Client) -> None:
    async with jobmill.connect("memory://") as other:
        await other.enqueue("send", queue="other")
        app = Starlette(routes=[Mount("/a", Dashboard(jobs)), Mount("/b", Dashboard(other))])
        visitor = Visitor(app)
        assert [row["queue"] for row in (await visitor.json("/b/queues"))["queues"]] == ["other"]
        assert (await visitor.json("/a/queues"))["queues"] == []


async def test_served_alone_it_answers_lifespan_events_and_leaves_the_client_open(jobs: Client) -> None:
    dashboard = Dashboard(jobs)
    async with serve(dashboard, lifespan="on") as url:
        port = int(url.rpartition(":")[2])
        assert (await asyncio.to_thread(ask, port, "/queues")).status == 200
    await jobs.enqueue("send")


async def test_websockets_are_refused(jobs: Client) -> None:
    with pytest.raises(RuntimeError, match="serves HTTP, not websocket"):
        await Dashboard(jobs)({"type": "websocket"}, None, None)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- WSGI


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def the_shop(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """The application around the dashboard."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"the shop at {environ['PATH_INFO']}".encode()]


Serving = Callable[[Any], int]


@pytest.fixture
def serving_wsgi() -> Iterator[Serving]:
    """Serve an app with Python's own server, with its validator around it; the port."""
    servers = []

    def start(app: Any) -> int:
        server = make_server("127.0.0.1", 0, validator(app), handler_class=Quiet)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Client]:
    """A client that code without an event loop uses."""
    jobs = jobmill.connect(f"sqlite:///{tmp_path}/jobs.db")
    yield jobs
    await asyncio.to_thread(jobs.sync.close)


async def test_it_is_a_wsgi_app_alone(shop: Client, serving_wsgi: Serving) -> None:
    await asyncio.to_thread(shop.sync.enqueue, "send", {"to": "ada"}, queue="mail", id="ö/ä")
    port = serving_wsgi(wsgi_app(Dashboard(shop)))
    page = await asyncio.to_thread(ask, port, "/queues")
    assert (page.status, "no worker claims it" in page.words) == (200, True)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert int(page.headers["content-length"]) == len(page.text.encode())
    assert "hx-sse:connect" not in page.text
    assert 'hx-trigger="refresh, every 30s"' in page.text
    head = await asyncio.to_thread(ask, port, "/queues", "HEAD")
    assert (head.status, head.text) == (200, "")
    live = await asyncio.to_thread(ask, port, "/live")
    assert (live.status, live.text) == (204, "")
    job = await asyncio.to_thread(ask, port, "/jobs/%C3%B6%2F%C3%A4", accept="application/json")
    assert job.json["job"]["id"] == "ö/ä"
    missing = await asyncio.to_thread(ask, port, "/nowhere%FF")
    assert (missing.status, "There is nothing at this address." in missing.words) == (404, True)
    static = next(part for part in page.text.split('"') if part.endswith("/app.js"))
    assert "toggleTheme" in (await asyncio.to_thread(ask, port, static)).text
    body = urlencode({"queue": "mail", "back": "/queues"})
    act = await asyncio.to_thread(ask, port, "/acts/pause", "POST", body, **SAME)
    assert (act.status, act.headers["location"].startswith("/queues?done=")) == (303, True)
    assert (await asyncio.to_thread(shop.sync.queue("mail").settings)).paused
    refused = await asyncio.to_thread(
        ask, port, "/acts/resume", "POST", "queue=mail", **{**SAME, "sec-fetch-site": "x"}
    )
    assert refused.status == 403


@pytest.mark.parametrize("root", ["", "/outer"])
async def test_below_a_path_of_another_app(shop: Client, root: str) -> None:
    app = wsgi_app(Dashboard(shop), "/a/jobs", the_shop)

    def call(path: str, **more: Any) -> tuple[str, dict[str, str], str]:
        environ: dict[str, Any] = {
            "SCRIPT_NAME": root,
            "PATH_INFO": path,
            "REMOTE_ADDR": "127.0.0.1",
            "QUERY_STRING": "",
        }
        setup_testing_defaults(environ)
        environ |= {"HTTP_HOST": "localhost:8000", **more}
        started: list[Any] = []

        def start_response(*given: Any) -> Any:
            started.append(given)
            return lambda _: None

        parts = validator(app)(environ, start_response)
        body = b"".join(parts)
        parts.close()  # type: ignore[attr-defined]
        status, headers = started[0][:2]
        return status, dict(headers), body.decode()

    for path in ("/", "/a/job", "/a/jobsx", "/queues"):
        assert (await asyncio.to_thread(call, path))[2] == f"the shop at {path}"
    status, _, text = await asyncio.to_thread(call, "/a/jobs/queues")
    assert (status, f'href="{root}/a/jobs/workers"' in text) == ("200 OK", True)
    form = b"queue=mail&back=" + f"{root}/a/jobs/queues".encode()
    status, headers, _ = await asyncio.to_thread(
        call,
        "/a/jobs/acts/pause",
        REQUEST_METHOD="POST",
        HTTP_SEC_FETCH_SITE="same-origin",
        CONTENT_TYPE=SAME["content-type"],
        CONTENT_LENGTH=str(len(form)),
        **{"wsgi.input": io.BytesIO(form)},
    )
    assert (status, headers["location"].startswith(f"{root}/a/jobs/queues?done=")) == ("303 See Other", True)
    # Proxies and other machines need a token here too.
    for about in ({"HTTP_X_FORWARDED_FOR": "1.2.3.4"}, {"REMOTE_ADDR": "203.0.113.9"}, {"REMOTE_ADDR": ""}):
        assert (await asyncio.to_thread(call, "/a/jobs/queues", **about))[0] == "403 Forbidden"


async def test_what_a_wsgi_server_says_reaches_authorize(shop: Client, serving_wsgi: Serving) -> None:
    def authorize(request: Any) -> Access | None:
        return Access.READ if request.scope["wsgi_environ"].get("REMOTE_USER") == "ada" else None

    inner = wsgi_app(Dashboard(shop, authorize=authorize))

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        return inner({**environ, "REMOTE_USER": environ.get("HTTP_X_USER", "")}, start_response)

    port = serving_wsgi(app)
    assert (await asyncio.to_thread(ask, port, "/queues", x_user="ada")).status == 200
    assert (await asyncio.to_thread(ask, port, "/queues")).status == 403


async def test_a_failure_is_a_page_there_too(
    shop: Client, serving_wsgi: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> Any:
        raise ZeroDivisionError("a secret")

    port = serving_wsgi(wsgi_app(Dashboard(shop)))
    monkeypatch.setattr(shop, "depths", broken)
    page = await asyncio.to_thread(ask, port, "/queues")
    assert (page.status, "ZeroDivisionError" in page.words, "a secret" in page.text) == (500, True, False)


@pytest.mark.parametrize(
    ("path", "otherwise"), [("jobs", the_shop), ("/jobs/", the_shop), ("/jobs", None), ("", the_shop)]
)
async def test_where_it_is_must_be_clear(jobs: Client, path: str, otherwise: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^(path|otherwise): "):
        wsgi_app(Dashboard(jobs), path, otherwise)


# ---------------------------------------------------------------------------------------------------- real servers

WITH_DJANGO = """
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

import jobmill
from jobmill.dashboard.wsgi import wsgi_app

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
urlpatterns = [path("", lambda request: HttpResponse("the shop"))]
jobs = jobmill.connect()
application = wsgi_app(jobmill.Dashboard(jobs), "/jobs", get_wsgi_application())
"""

WITH_FLASK = """
from flask import Flask, url_for

import jobmill
from jobmill.dashboard.wsgi import wsgi_app

application = Flask(__name__)
jobs = jobmill.connect()
application.wsgi_app = wsgi_app(jobmill.Dashboard(jobs), "/jobs", application.wsgi_app)


@application.get("/")
def home():
    return "the shop"


@application.get("/jobs-of-the-shop")
def vacancies():
    jobs.sync.enqueue("apply", queue="mail")
    return url_for("home")
"""


@pytest.fixture
async def gunicorn(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """An app under gunicorn, which loads the application and then forks two workers; the port."""
    (tmp_path / "shop_wsgi.py").write_text(request.param)
    async with jobmill.connect(f"sqlite:///{tmp_path}/jobs.db"):
        pass  # the file exists before two processes open it
    port = free_port()
    options = ["--preload", "--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{port}", "--timeout", "15"]
    process = await asyncio.to_thread(_start, [sys.executable, "-m", "gunicorn", *options], tmp_path)
    try:
        async with asyncio.timeout(40):
            while process.poll() is None and not await asyncio.to_thread(_answers, port):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield port
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
    assert "Traceback" not in (tmp_path / "log").read_text()


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "JOBMILL_URL": f"sqlite:///{folder}/jobs.db"}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, "shop_wsgi:application"], env=environment, cwd=folder, stdout=log, stderr=log
        )


def _answers(port: int) -> bool:
    try:
        return ask(port, "/").text == "the shop"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("gunicorn", [WITH_DJANGO, WITH_FLASK], ids=["django", "flask"], indirect=True)
async def test_frameworks_under_gunicorn(gunicorn: int) -> None:
    def many(path: str, count: int = 12) -> list[Answer]:
        return [ask(gunicorn, path) for _ in range(count)]

    assert ask(gunicorn, "/").text == "the shop"
    pages = await asyncio.gather(*(asyncio.to_thread(many, "/jobs/queues") for _ in range(4)))
    assert [page.words for some in pages for page in some if page.status != 200] == []
    assert 'href="/jobs/workers"' in pages[0][0].text
    enqueue = json.dumps({"name": "send", "queue": "mail", "payload": '{"to": "ada"}'})
    headers = {"content-type": "application/json", "accept": "application/json"}
    done = await asyncio.to_thread(ask, gunicorn, "/jobs/acts/enqueue", "POST", enqueue, **headers)
    assert (done.status, done.json["count"]) == (200, 1)
    # The page after an act is fresh, also in the process that did not do it.
    for act, word in (("pause", True), ("resume", False)) * 6:
        form = urlencode({"queue": "mail", "back": "/jobs/queues"})
        done = await asyncio.to_thread(ask, gunicorn, f"/jobs/acts/{act}", "POST", form, **SAME)
        after = await asyncio.to_thread(ask, gunicorn, done.headers["location"])
        assert ("paused by" in after.words) is word
    # A stream would keep a thread busy: pages load again by themselves instead.
    assert (await asyncio.to_thread(ask, gunicorn, "/jobs/live")).status == 204
    page = pages[0][0]
    assert ("hx-sse:connect" in page.text, "every 30s" in page.text) == (False, True)
    for name, content in (("app.js", "toggleTheme"), ("jobmill.css", "color-scheme")):
        address = next(part for part in page.text.split('"') if part.endswith(f"/{name}"))
        asset = await asyncio.to_thread(ask, gunicorn, address)
        assert (content in asset.text, "immutable" in asset.headers["cache-control"]) == (True, True)
    # A body in chunks has no length.
    chunks = iter([b"queue=", b"mail", b"&back=/jobs/queues"])
    in_chunks = {**SAME, "transfer-encoding": "chunked"}
    done = await asyncio.to_thread(ask, gunicorn, "/jobs/acts/pause", "POST", chunks, **in_chunks)
    assert "paused by" in (await asyncio.to_thread(ask, gunicorn, done.headers["location"])).words
    large = await asyncio.to_thread(ask, gunicorn, "/jobs/acts/pause", "POST", b"x" * (MAX_BODY + 10), **SAME)
    assert (large.status, "at most 2,097,152 bytes" in large.words) == (400, True)


@pytest.mark.slow
@pytest.mark.parametrize("gunicorn", [WITH_FLASK], ids=["flask"], indirect=True)
async def test_flask_keeps_its_own_pages_and_the_same_client_enqueues(gunicorn: int) -> None:
    """A path of the application may begin like that of the dashboard."""
    assert (await asyncio.to_thread(ask, gunicorn, "/jobs-of-the-shop")).text == "/"
    assert (await asyncio.to_thread(ask, gunicorn, "/nowhere")).status == 404
    page = await asyncio.to_thread(ask, gunicorn, "/jobs/jobs?q=apply", accept="application/json")
    assert [job["name"] for job in page.json["jobs"]] == ["apply"]
    job = await asyncio.to_thread(ask, gunicorn, f"/jobs/jobs/{page.json['jobs'][0]['id']}")
    assert (job.status, "apply" in job.words) == (200, True)
