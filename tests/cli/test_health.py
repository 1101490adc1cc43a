"""`jobmill health`, against real workers and against what is none."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tests.cli.conftest import Shell
from tests.cli.test_worker import read_until
from tests.kit.places import free_port


@pytest.fixture
def app(shell: Shell) -> Shell:
    shell.write_app()
    return shell


def health(app: Shell, *args: str, port: str = "") -> tuple[int, str, str]:
    environment = {**app.environment, "JOBMILL_HEALTH": port}
    command = [sys.executable, "-m", "jobmill", "health", *args]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.slow
def test_a_worker_is_ready_and_then_stops(app: Shell) -> None:
    app("enqueue", "snail")
    port = str(free_port())
    worker = app.start("worker", "app:jobs", "--health", port, "-v")
    read_until(worker, "claimed")
    assert health(app, port) == (0, "ok\n", "")
    assert health(app, "--live", port=port) == (0, "ok\n", "")
    assert health(app, port, "--json") == (0, '{"ok":true}\n', "")
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "stopping")
    assert health(app, port) == (1, "", f"jobmill: 127.0.0.1:{port}/readyz: stopping: True\n")
    code, out, _ = health(app, port, "--json")
    assert (code, json.loads(out)) == (1, {"ok": False, "stopping": True})
    assert health(app, port, "--live", "--json") == (0, '{"ok":true}\n', "")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=20)
    assert worker.returncode == 0


@pytest.mark.slow
def test_the_worker_takes_the_port_of_the_environment_too(app: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(app.folder / "socket")
    monkeypatch.setenv("JOBMILL_HEALTH", path)
    worker = app.start("worker", "app:jobs")
    read_until(worker, "concurrency")
    assert health(app, port=path) == (0, "ok\n", "")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=20)
    assert worker.returncode == 0


def test_nothing_answers(shell: Shell) -> None:
    port = free_port()
    line = shell.refused("health", str(port), code=1)
    assert line.startswith(f"jobmill: 127.0.0.1:{port}/readyz: error: no answer from 127.0.0.1:{port} (")
    assert "Connect call failed" in line
    answer = shell.json("health", str(port), code=1)
    assert answer["ok"] is False
    assert answer["error"].startswith(f"no answer from 127.0.0.1:{port}")
    assert "no answer from /no/such/socket" in shell.refused("health", "/no/such/socket", code=1)


def test_another_server_answers(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nwelcome")

        thread = threading.Thread(target=serve)
        thread.start()
        line = shell.refused("health", str(server.getsockname()[1]), code=1)
        thread.join()
    assert line.endswith("/readyz: error: the answer is not from a worker")


def test_what_is_no_port_is_refused(shell: Shell) -> None:
    assert "health: expected a port, or the path" in shell.refused("health", "web", code=2)
    assert "health: expected a whole number from 0 to 65535" in shell.refused("health", "70000", code=2)
    assert "Missing argument 'PORT'" in shell.refused("health", code=2)
