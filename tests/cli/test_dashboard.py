"""`jobmill dashboard`, `worker --dashboard` and `demo --dashboard` as processes, with requests over real sockets."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
import pytest

from jobmill.cli import main
from tests.cli.conftest import Shell
from tests.cli.test_demo import temporary
from tests.cli.test_worker import read_until
from tests.kit.places import free_port

__all__ = ["temporary"]

TOKEN = "a-secret-of-the-shop"
LINK = re.compile(r"http://\S+/")
#: With tabs open; a graceful end waits for requests, but not for these.
ENDS_WITHIN_S = 45.0


class Response(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str


@pytest.fixture
def app(shell: Shell) -> Shell:
    shell.write_app()
    shell("enqueue", "double", '{"n": 21}', "--id", "d")
    return shell


def link_of(process: subprocess.Popen[str]) -> str:
    """The link that a process prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := LINK.search(line):
            return found[0]
    assert process.stderr is not None
    raise AssertionError(f"ended without a link: {process.stderr.read()}")


def ask(url: str, method: str = "GET", body: str | None = None, **headers: str) -> Response:
    """One request."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body, {name.replace("_", "-"): one for name, one in headers.items()})
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read().decode())
    finally:
        connection.close()


def data(url: str, **headers: str) -> Any:
    """The data of a page."""
    response = ask(url, accept="application/json", **headers)
    assert response.status == 200, response
    return json.loads(response.text)


class Tab:
    """An open page: the connection with its live updates."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=20)
        self._socket.sendall(f"GET {parts.path}live HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        self._reading = self._socket.makefile("rb")

    def read_until(self, event: bytes) -> None:
        while event not in (line := self._reading.readline()):
            assert line, "the stream ended"

    def close(self) -> None:
        self._reading.close()
        self._socket.close()


@pytest.fixture
def tabs() -> Iterator[list[Tab]]:
    opened: list[Tab] = []
    yield opened
    for tab in opened:
        tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_link_and_ends_with_0_while_tabs_are_open(
    app: Shell, tabs: list[Tab], number: signal.Signals
) -> None:
    process = app.start("dashboard", app.url, "--port", "0", "--title", "shop <prod>", "--color", "red")
    link = link_of(process)
    page = ask(f"{link}queues")
    assert (page.status, "<b>shop &lt;prod&gt;</b>" in page.text, 'data-env="red"' in page.text) == (200, True, True)
    assert [row["queue"] for row in data(f"{link}queues")["queues"]] == ["default"]
    for _ in range(3):
        tabs.append(Tab(link))
        tabs[-1].read_until(b"event: second")
    began = time.monotonic()
    process.send_signal(number)
    rest, said = process.communicate(timeout=20)
    assert time.monotonic() - began < ENDS_WITHIN_S
    assert (process.returncode, rest, said) == (0, "", "")


def test_a_module_knows_its_handlers_and_a_url_does_not(app: Shell) -> None:
    by_module = link_of(app.start("dashboard", "app:jobs", "--port", "0"))
    by_url = link_of(app.start("dashboard", "--port", "0"))
    assert data(f"{by_module}jobs/d")["max_attempts"] == 3
    assert data(f"{by_url}jobs/d")["max_attempts"] is None


def test_a_module_needs_no_handlers(app: Shell) -> None:
    app.write_app("import jobmill\njobs = jobmill.connect()\n", "shop.py")
    link = link_of(app.start("dashboard", "shop:jobs", "--port", "0"))
    assert data(f"{link}jobs/d")["job"]["name"] == "double"


def test_a_token_is_needed_and_reaches_no_output(app: Shell) -> None:
    (app.folder / "token").write_text(f"{TOKEN}\n")
    process = app.start("dashboard", "--port", "0", "--token-file", "token", "--host", "0.0.0.0")
    link = link_of(process).replace("0.0.0.0", "127.0.0.1")
    assert ask(f"{link}queues").status == 403
    assert data(f"{link}queues", authorization=f"Bearer {TOKEN}")["queues"]
    entered = ask(f"{link}queues?token={TOKEN}&x=1")
    assert (entered.status, entered.headers["location"]) == (303, "/queues?x=1")
    cookie = entered.headers["set-cookie"].partition(";")[0]
    assert ask(f"{link}queues", cookie=cookie).status == 200
    for path in ("queues?token=wrong", f"nowhere?token={TOKEN}", f"workers/?token={TOKEN}", f"live/?token={TOKEN}"):
        response = ask(link + path)
        assert response.status == 403, path
        assert TOKEN not in f"{response.headers}{response.text}"
    # uvicorn logs what it cannot read.
    parts = urlsplit(link)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as broken:
        broken.sendall(f"GET /queues?token={TOKEN} HTTP/1.1\r\nHost: a\r\nbroken header: \0{TOKEN}\r\n\r\n".encode())
        assert b" 400 " in broken.recv(1_000)
    process.terminate()
    rest, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert TOKEN not in rest + said


def test_the_token_of_the_environment(app: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMILL_DASHBOARD_TOKEN", TOKEN)
    link = link_of(app.start("dashboard", "--port", "0"))
    assert ask(f"{link}queues").status == 403
    assert data(f"{link}queues", authorization=f"Bearer {TOKEN}")["queues"]


def test_read_only_hidden_fields_and_the_path_of_a_proxy(app: Shell) -> None:
    app("enqueue", "double", '{"n": 1, "api_token": "t-1", "PIN": "1234"}', "--id", "p")
    link = link_of(
        app.start("dashboard", "--port", "0", "--read-only", "--path", "/a/jobs", "--redact", "*token*", "--redact=pin")
    )
    assert link.endswith("/a/jobs/")
    payload = data(f"{link}jobs/p")["job"]["payload"]
    assert (payload["n"], {payload["api_token"], payload["PIN"]}) == (1, {"•••• hidden"})
    origin = {"sec_fetch_site": "same-origin", "content_type": "application/x-www-form-urlencoded"}
    assert ask(f"{link}acts/pause", "POST", "queue=default", **origin).status == 403
    assert not app.do(lambda client: client.queue("default").settings()).paused


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_every_name_of_this_machine_can_be_served(app: Shell, host: str) -> None:
    link = link_of(app.start("dashboard", "--port", "0", "--host", host))
    assert ask(f"{link}queues").status == 200


# ---------------------------------------------------------------------------------------------------- refused


def test_off_loopback_without_a_token_it_refuses(app: Shell) -> None:
    said = app.refused("dashboard", "--host", "0.0.0.0", code=2)
    assert said == (
        "jobmill: on 0.0.0.0 other machines could see and change the jobs: set a token in JOBMILL_DASHBOARD_TOKEN or "
        "--token-file, or leave out --host to serve only this machine"
    )
    assert "could see the jobs: " in app.refused("dashboard", "--host", "0.0.0.0", "--read-only", code=2)


def test_off_loopback_a_token_that_can_be_guessed_is_refused(app: Shell) -> None:
    path = app.folder / "token"
    path.write_text("15-characters-x\n")
    said = app.refused("dashboard", "--host", "0.0.0.0", "--token-file", str(path), code=2)
    assert said.startswith(
        "jobmill: on 0.0.0.0 other machines could guess the token and see and change the jobs: it has 15"
    )
    assert "15-characters-x" not in said


def test_a_port_that_is_taken_is_named(app: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"port: expected a port that can be bound on 127.0.0.1, got {port}; Address already in use"
        for command in (["dashboard", "--port", str(port)], ["worker", "app:jobs", "--dashboard", str(port)]):
            process = app.start(*command)
            _, said = process.communicate(timeout=20)
            assert (process.returncode, expected in said) == (2, True), said


def test_what_cannot_be_used_is_refused_with_a_sentence(app: Shell) -> None:
    assert "there is no database at" in app.refused("dashboard", "sqlite:///nowhere.db", code=1)
    assert "commands cannot reach it" in app.refused("dashboard", "memory://", code=2)
    assert "there is no module 'nowhere'" in app.refused("dashboard", "nowhere:jobs", code=2)
    assert "give the URL once" in app.refused("dashboard", app.url, "--url", app.url, code=2)
    assert "color: expected one of red, green, blue" in app.refused("dashboard", "--color", "pink", code=2)
    assert 'path: expected a path such as "/jobs"' in app.refused("dashboard", "--path", "jobs/", code=2)
    assert "--token-file nowhere cannot be read" in app.refused("dashboard", "--token-file", "nowhere", code=2)
    (app.folder / "empty").touch()
    assert "is empty" in app.refused("dashboard", "--token-file", str(app.folder / "empty"), code=2)


@pytest.mark.parametrize("module", ["starlette", "jinja2", "uvicorn"])
def test_the_command_without_the_extra(app: Shell, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    # None in sys.modules is how Python knows that there is no such module.
    monkeypatch.setitem(sys.modules, module, None)
    said = app.refused("dashboard", code=2)
    assert said == f"jobmill: jobmill dashboard needs {module}: pip install 'jobmill[dashboard]'"


# ---------------------------------------------------------------------------------------------------- beside others


@pytest.mark.parametrize(
    "arguments", [["--dashboard", "PORT", "app:jobs"], ["app:jobs", "--dashboard=PORT", "-c", "2"]]
)
def test_a_worker_shows_itself(app: Shell, tabs: list[Tab], arguments: list[str]) -> None:
    port = str(free_port())
    worker = app.start("worker", "--name", "ada", *(one.replace("PORT", port) for one in arguments))
    said = read_until(worker, "concurrency")
    assert f"the dashboard is at http://127.0.0.1:{port}/" in said
    link = f"http://127.0.0.1:{port}/"
    read_until_succeeded(link)
    tabs.append(Tab(link))
    tabs[0].read_until(b"event: workers")
    worker.terminate()
    _, rest = worker.communicate(timeout=20)
    assert worker.returncode == 0
    assert "worker ada: stopped" in rest


def read_until_succeeded(link: str) -> None:
    for _ in range(200):
        if data(f"{link}jobs/d")["job"]["state"] == "succeeded":
            return
        time.sleep(0.05)
    raise AssertionError("the job has not run")


def test_a_stopping_worker_still_shows_its_running_jobs(app: Shell) -> None:
    app("enqueue", "snail", "--id", "s")
    worker = app.start("worker", "app:jobs", "--dashboard", "0", "-v")
    link = LINK.search(read_until(worker, "the dashboard is at"))
    assert link is not None
    read_until(worker, "job s (snail), attempt 1: claimed")
    worker.terminate()
    read_until(worker, "stopping")
    assert data(f"{link[0]}jobs/s")["job"]["state"] == "running"
    worker.terminate()
    worker.communicate(timeout=20)
    assert worker.returncode == 0


def test_the_port_may_be_left_out(app: Shell) -> None:
    worker = main.get_command(click.Context(main), "worker")
    assert worker is not None
    for arguments in (["--dashboard", "app:jobs"], ["app:jobs", "--dashboard"], ["app:jobs", "--dashboard", "-c", "2"]):
        context = worker.make_context("worker", arguments)
        assert (context.params["target"], context.params["dashboard"]) == ("app:jobs", 8000)
    assert worker.make_context("worker", ["--dashboard", "8001", "app:jobs"]).params["dashboard"] == 8001
    assert worker.make_context("worker", ["app:jobs"]).params["dashboard"] is None


def test_several_processes_share_no_dashboard(app: Shell) -> None:
    said = app.refused("worker", "app:jobs", "--processes", "2", "--dashboard", code=2)
    assert "--dashboard works with one process only: run `jobmill dashboard app:jobs` beside this worker" in said


@pytest.mark.slow
def test_the_demo_keeps_its_dashboard_open_until_ctrl_c(shell: Shell, temporary: Path) -> None:
    process = shell.start("demo", "--dashboard", "0")
    link = link_of(process)
    assert process.stdout is not None
    for line in process.stdout:
        if "stays open" in line:
            break
    assert line == f"The dashboard stays open at {link} until Ctrl-C.\n"
    assert {row["queue"] for row in data(f"{link}queues")["queues"]} == {"demo", "burst"}
    process.send_signal(signal.SIGINT)
    _, wrong = process.communicate(timeout=20)
    assert (process.returncode, wrong) == (0, "")
    assert list(temporary.iterdir()) == []


def test_the_demo_with_a_dashboard_ends_at_once_too(shell: Shell, temporary: Path) -> None:
    process = shell.start("demo", "--dashboard", "0")
    link_of(process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert list(temporary.iterdir()) == []
