from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from types import SimpleNamespace

import pytest

from jobmill.cli.runner import loop_factory
from jobmill.cli.worker import to_argv
from tests.cli.conftest import Shell


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What a worker says, up to the line with this word."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if word in line:
            return said
    raise AssertionError(f"ended without {word!r}: {said}")


@pytest.fixture
def app(shell: Shell) -> Shell:
    shell.write_app()
    return shell


def test_a_worker_runs_jobs_and_stops_gracefully(app: Shell) -> None:
    worker = app.start("worker", "app:jobs", "--name", "ada", "--concurrency", "3")
    said = read_until(worker, "worker ada: concurrency 3")
    assert "INFO" in said
    assert app("enqueue", "double", '{"n": 21}', "--wait", "20s").stdout.splitlines()[1] == "42"
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=20)
    assert worker.returncode == 0
    assert "worker ada: stopped" in rest
    assert app.json("jobs", "list")[0]["worker"] == "ada"


def test_ctrl_c_releases_running_jobs(app: Shell) -> None:
    app("enqueue", "snail", "--id", "s")
    worker = app.start("worker", "app.py", "--shutdown-timeout", "0", "-v")
    read_until(worker, "job s (snail), attempt 1: claimed")
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=20)
    assert worker.returncode == 0
    (job,) = app.json("jobs", "list")
    assert (job["state"], job["errors"], job["crashes"]) == ("waiting", 0, 0)


def test_an_errored_attempt_is_logged_in_one_line(app: Shell) -> None:
    app("enqueue", "refuse", "--id", "r")
    worker = app.start("worker", "app:jobs")
    said = read_until(worker, "job r (refuse)")
    assert said.splitlines()[-1].endswith("attempt 1 errored, failed: RuntimeError: not today, nor tomorrow")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=20)
    assert worker.returncode == 0


def test_quiet_prints_nothing(app: Shell) -> None:
    worker = app.start("worker", "app:jobs", "--quiet")
    app("enqueue", "double", '{"n": 1}', "--wait", "20s")
    worker.send_signal(signal.SIGTERM)
    assert worker.communicate(timeout=20) == ("", "")
    assert worker.returncode == 0


def test_several_processes(app: Shell) -> None:
    worker = app.start("worker", "app:jobs", "--processes", "2", "--lease", "2s", "--queue", "default")
    said = read_until(worker, "concurrency")
    said += read_until(worker, "concurrency")
    assert "process 1 of 2: started" in said
    assert app.json("enqueue", "double", '{"n": 2}', "--wait", "20s")["result"] == 4
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=30)
    assert worker.returncode == 0, rest


def test_each_of_several_processes_gets_the_options_also_a_zero() -> None:
    options = {"queues": ("a", "b"), "claim_ahead": 0, "lease": "2s", "wait_for_store": False, "verbose": True}
    given = ["--queue=a", "--queue=b", "--claim-ahead=0", "--lease=2s", "--no-wait", "--verbose"]
    assert to_argv({**options, "quiet": False, "health": None}) == given


def test_several_processes_of_an_invalid_module(app: Shell) -> None:
    worker = app.start("worker", "app:jobz", "--processes", "2")
    _, said = worker.communicate(timeout=30)
    assert worker.returncode == 2
    assert "jobmill: app has no 'jobz'; clients there: jobs" in said


def test_health_serves_livez(app: Shell) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = app.start("worker", "app:jobs", "--health", str(port))
    read_until(worker, "concurrency")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=20)
    assert worker.returncode == 0


def test_a_store_that_cannot_be_opened(app: Shell) -> None:
    app.file.write_text("no database" * 500)
    worker = app.start("worker", "app:jobs", "--quiet")
    _, said = worker.communicate(timeout=20)
    assert worker.returncode == 1
    assert said.startswith("jobmill: ")
    assert said.count("\n") == 1


def test_uvloop_is_used_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(new_event_loop=object())
    monkeypatch.setitem(sys.modules, "uvloop", fake)
    assert loop_factory.__wrapped__() is fake.new_event_loop
    # None in sys.modules is how Python knows that there is no such module.
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory.__wrapped__() is None


def test_logs_as_json(app: Shell) -> None:
    worker = app.start("worker", "app:jobs", "--log-format", "json", "--name", "press-1", "--processes", "1")
    app("enqueue", "refuse", "{}", "--wait", "20s", code=1)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=20)
    lines = [json.loads(line) for line in said.splitlines()]
    assert lines[0]["message"].startswith("worker press-1: concurrency")
    (error,) = [line for line in lines if line["level"] == "error"]
    assert (error["job_name"], error["queue"], error["worker"], error["logger"]) == (
        "refuse",
        "default",
        "press-1",
        "jobmill",
    )
    assert error["attempt"] >= 1
    assert error["job_id"] in error["message"]
    assert "RuntimeError: not today" in error["traceback"]


LOGGING_APP = """
import asyncio
import logging
import jobmill

jobs = jobmill.connect()
log = logging.getLogger("shop")

@jobs.handler(queue="post")
async def in_loop() -> None:
    log.info("said in_loop")

@jobs.handler(queue="post")
def in_thread() -> None:
    log.info("said in_thread")

@jobs.handler(queue="post", isolate=True)
def in_process() -> None:
    log.info("said in_process")
"""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_lines_of_handlers_carry_their_job(app: Shell, log_format: str) -> None:
    (app.folder / "app.py").write_text(LOGGING_APP)
    worker = app.start("worker", "app:jobs", "--log-format", log_format, "--name", "press-1")
    names = ("in_loop", "in_thread", "in_process")
    ids = {name: app.enqueue(name, "--queue", "post", "--wait", "20s") for name in names}
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=20)
    for name, id in ids.items():
        (line,) = [line for line in said.splitlines() if f"said {name}" in line]
        if log_format == "text":
            assert line.endswith(f" INFO    job {id}: said {name}")
        else:
            job = {"job_id": id, "job_name": name, "queue": "post", "attempt": 1, "fence": 1, "worker": "press-1"}
            assert json.loads(line).items() >= (job | {"logger": "shop", "message": f"said {name}"}).items()
