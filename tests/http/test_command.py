"""`jobmill http` as a process, with requests over a real socket."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell

pytestmark = pytest.mark.stores("sqlite")

TICK = "/api/jobs/tick"

APP = """
import asyncio
import pathlib
import jobmill
import jobmill.http

jobs = jobmill.connect()
endpoint = jobmill.http.TickEndpoint(jobs)

@jobs.handler()
async def double(n: int) -> int:
    return 2 * n

@jobs.handler()
async def gate(here: str) -> None:
    pathlib.Path(here, "entered").touch()
    while not pathlib.Path(here, "open").exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def app(shell: Shell) -> Shell:
    shell.write_app(APP)
    return shell


class Listening:
    """A process that has logged its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        url = self.read_until(r"http://([\w.]+):(\d+)")
        self.host, self.port = url[1], int(url[2])

    def read_until(self, pattern: str) -> re.Match[str]:
        """The output up to a matching line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"ended without {pattern!r}: {self.said}")

    def ask(self, method: str = "POST", path: str = TICK, **more: Any) -> tuple[int, Any, http.client.HTTPMessage]:
        """Status, body and headers of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, **more)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null"), answer.headers
        finally:
            connection.close()

    def end(self, number: int = signal.SIGTERM) -> str:
        """Stop it gracefully. Returns all output."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, self.said + rest
        return self.said + rest


def listening(app: Shell, *args: str) -> Listening:
    return Listening(app.start("http", "app:jobs", "--port", "0", *args))


def entered(app: Shell) -> None:
    """Wait until the handler `gate` runs; the process that runs it writes into this folder."""
    import asyncio

    from tests.helpers import until

    asyncio.run(until((app.folder / "entered").exists))


def file_with(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# ---------------------------------------------------------------------------------------------------- serving


def test_the_command_serves_ticks_and_stops_gracefully(app: Shell) -> None:
    ids = [app.enqueue("double", f'{{"n": {n}}}') for n in range(3)]
    server = listening(app, "--limit", "2")
    assert server.host == "127.0.0.1"
    assert f"{TICK}: up to 2 jobs per tick, for this machine only, without a token" in server.said
    counts = {"retrying": 0, "failed": 0, "waiting": 0, "lost": 0}
    for done in (2, 1, 0):
        status, body, _ = server.ask(path=f"{TICK}?limit=10", body=b'{"limit": 10}')
        assert (status, body) == (200, {"ok": True, "claimed": done, "succeeded": done, **counts})
    assert [job["state"] for job in app.json("jobs", "list")] == ["succeeded"] * len(ids)

    status, body, headers = server.ask("GET")
    assert (status, body, headers["allow"]) == (405, {"ok": False, "error": "expected POST"}, "POST")
    assert server.ask("HEAD")[:2] == (405, None)
    assert server.ask(path="/")[0] == 404
    status, body, _ = server.ask(body=b"x" * 1_000_000)
    assert status == 413
    assert server.end().splitlines()[-1].endswith("stopped")


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_token_from_a_file_or_the_environment(app: Shell, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "file":
        # The file is heard before the environment.
        monkeypatch.setenv("JOBMILL_HTTP_TOKEN", "other")
        server = listening(app, "--token-file", file_with(app.folder / "token", "s3cret\n"))
    else:
        monkeypatch.setenv("JOBMILL_HTTP_TOKEN", "s3cret")
        server = listening(app)
    assert "for requests with the token" in server.said
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer s3cr\xe9t"}):
        status, body, heard = server.ask(headers=headers)
        assert (status, body["ok"], heard["www-authenticate"]) == (401, False, "Bearer")
    assert server.ask(headers={"Authorization": "bearer s3cret"})[0] == 200
    assert "s3cret" not in server.end()


def test_forwarding_headers_do_not_change_the_peer_address(app: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    spoofed = {"X-Forwarded-For": "203.0.113.9"}
    server = listening(app)
    assert server.ask()[0] == 200
    assert server.ask(headers=spoofed)[0] == 403
    server.end()
    # Who asks is who is at the other end of the socket, whatever the header says.
    monkeypatch.setenv("JOBMILL_HTTP_TOKEN", "s3cret")
    server = listening(app)
    assert server.ask(headers={"Authorization": "Bearer s3cret", **spoofed})[0] == 200
    said = server.end()
    assert re.search(r'127\.0\.0\.1:\d+ - "POST /api/jobs/tick HTTP/1.1" 200', said)
    assert "203.0.113.9" not in said


def test_the_endpoint_served_by_uvicorn(app: Shell) -> None:
    app.enqueue("double", '{"n": 1}')
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "app:endpoint", "--port", "0", "--lifespan", "on"],
        cwd=app.folder,
        env=app.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    app.processes.append(process)
    server = Listening(process)
    assert server.ask()[1]["succeeded"] == 1
    # By default uvicorn trusts this header from local peers, which would make every client local.
    assert server.ask(headers={"X-Forwarded-For": "127.0.0.1"})[0] == 403
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=20)
    assert "Application shutdown complete." in rest


def test_quiet_prints_nothing(app: Shell) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = app.start("http", "app:jobs", "--quiet", "--port", str(port))
    _until_connected(port)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


def _until_connected(port: int) -> None:
    """Until its answer is here: by then its signals are its own to handle."""
    import asyncio

    from tests.helpers import until

    def answers() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == 404
        except ConnectionRefusedError:
            return False
        finally:
            connection.close()

    asyncio.run(until(answers, timeout=20))


# ---------------------------------------------------------------------------------------------------- ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_waits_for_the_running_tick(app: Shell, number: int) -> None:
    app.enqueue("gate", json.dumps({"here": str(app.folder)}))
    server = listening(app)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.ask)
        entered(app)
        server.process.send_signal(number)
        server.read_until("the running tick has 30 s to end")
        with pytest.raises(ConnectionRefusedError):
            server.ask()
        (app.folder / "open").touch()
        assert asked.result(20)[1]["succeeded"] == 1
    server.process.communicate(timeout=20)
    assert server.process.returncode == 0


def test_a_tick_that_takes_too_long_releases_its_jobs(app: Shell) -> None:
    app.enqueue("gate", json.dumps({"here": str(app.folder)}))
    server = listening(app, "--shutdown-timeout", "10ms")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.ask)
        entered(app)
        server.end()
        assert asked.result(20)[:2] == (503, {"ok": False, "error": "stopping; try again later"})
    (job,) = app.json("jobs", "list")
    assert (job["state"], job["errors"], job["crashes"]) == ("waiting", 0, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_releases_jobs_at_once(app: Shell, number: int) -> None:
    app.enqueue("gate", json.dumps({"here": str(app.folder)}))
    server = listening(app, "--shutdown-timeout", "10m")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.ask)
        entered(app)
        server.process.send_signal(number)
        server.read_until("the running tick has 600 s to end")
        server.end(number)
        assert asked.result(20)[0] == 503
    (job,) = app.json("jobs", "list")
    assert (job["state"], job["errors"], job["crashes"]) == ("waiting", 0, 0)


def test_a_client_that_disconnects_does_not_end_its_tick(app: Shell) -> None:
    app.enqueue("gate", json.dumps({"here": str(app.folder)}))
    server = listening(app)
    with socket.create_connection((server.host, server.port)) as asking:
        asking.sendall(b"POST /api/jobs/tick HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        entered(app)
    (app.folder / "open").touch()
    assert server.ask()[1]["claimed"] == 0  # the tick after it
    server.end()
    (job,) = app.json("jobs", "list")
    assert (job["state"], job["claims"]) == ("succeeded", 1)


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_for_other_machines_needs_a_token(app: Shell, host: str) -> None:
    said = app.refused("http", "app:jobs", "--host", host, code=2)
    assert f"on {host} other machines could run jobs: set a token in JOBMILL_HTTP_TOKEN or --token-file" in said


def test_an_empty_token_is_refused(app: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_with(app.folder / "token", " \n")
    assert f"--token-file {path} is empty" in app.refused("http", "app:jobs", "--token-file", path, code=2)
    monkeypatch.setenv("JOBMILL_HTTP_TOKEN", "")
    assert "JOBMILL_HTTP_TOKEN is empty" in app.refused("http", "app:jobs", code=2)


def test_a_token_is_never_shown(app: Shell) -> None:
    path = file_with(app.folder / "token", "two words")
    process = app.start("http", "app:jobs", "--token-file", path)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 2
    assert said.startswith("jobmill: token: expected 1 to 4096 visible ASCII characters")
    assert "two words" not in said


def test_a_missing_token_file_is_refused(app: Shell) -> None:
    said = app.refused("http", "app:jobs", "--token-file", "/no/such/file", code=2)
    assert said == "jobmill: --token-file /no/such/file cannot be read: No such file or directory"


def test_a_port_that_is_taken_is_refused(app: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, said = app.start("http", "app:jobs", "--port", str(port)).communicate(timeout=20)
    assert said == (
        f"jobmill: port: expected a port that can be bound on 127.0.0.1, got {port}; Address already in use\n"
    )


def test_an_unknown_host_is_refused(app: Shell) -> None:
    said = app.refused("http", "app:jobs", "--host", "no such host", code=2)
    assert "host: expected an address or a name of this machine, got 'no such host'" in said


def test_a_store_that_cannot_be_opened(app: Shell) -> None:
    app.file.write_text("no database" * 500)
    process = app.start("http", "app:jobs", "--port", "0")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert said.startswith("jobmill: ")
    assert said.count("\n") == 1


def test_the_command_without_the_extra(app: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules is how Python knows that there is no such module.
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = app.refused("http", "app:jobs", code=2)
    assert said == "jobmill: jobmill http needs uvicorn: pip install 'jobmill[http]'"


def test_only_running_the_command_needs_the_extra(app: Shell) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; import jobmill.http, jobmill.cli; jobmill.cli.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], env=app.environment, capture_output=True, text=True, check=True)
    assert "Serve POST /api/jobs/tick" in done.stdout
