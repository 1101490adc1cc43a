"""The supervisor, in its own process, with real child processes. The tests wait for what these print."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import IO

import pytest

from jobmill.errors import InvalidValue
from jobmill.runtime.backoff import LoopBackoff
from jobmill.worker import supervisor
from jobmill.worker.processes import StartedProcess
from jobmill.worker.recycle import RECYCLED
from jobmill.worker.supervisor import supervise

SUPERVISOR = """
import logging, sys
from jobmill.worker.supervisor import supervise, supervise_forks
from tests.worker import supervised

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
mode, processes, patience, *argv = sys.argv[1:]
options = {"shutdown_timeout": float(patience), "kill_after": 0.1}
if mode == "spawn":
    program = (sys.executable, "-u", supervised.__file__)
    sys.exit(supervise(argv, int(processes), program=program, **options))
sys.exit(supervise_forks(lambda socket: supervised.main(*argv), int(processes), **options))
"""


class Supervised:
    """A running supervisor, and the output of its children."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self._errors = errors

    def hear(self, count: int) -> list[tuple[str, int]]:
        """The next lines: an event and a process id each."""
        out: IO[str] | None = self.process.stdout
        assert out is not None
        lines = [out.readline().split() for _ in range(count)]
        assert all(lines), f"ended too early: {self.log}"
        return [(what, int(pid)) for what, pid in lines]

    def up(self, count: int) -> set[int]:
        """Wait until this many more processes have started."""
        events = self.hear(count)
        assert {what for what, _ in events} == {"up"}
        return {pid for _, pid in events}

    @property
    def log(self) -> str:
        return self._errors.read_text()

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(10)


@contextmanager
def supervised(mode: str, tmp_path: Path, *argv: str, processes: int = 2, patience: float = 20) -> Iterator[Supervised]:
    errors = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, mode, str(processes), str(patience), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    with process:
        try:
            yield Supervised(process, errors)
        finally:
            process.kill()


Start = Callable[..., AbstractContextManager[Supervised]]


@pytest.fixture(params=["spawn", "fork"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts a supervisor. Each promise holds for new interpreters and for forks."""
    return functools.partial(supervised, request.param, tmp_path)


def test_sigterm_stops_all_processes_gracefully(start: Start) -> None:
    with start("serve", processes=3) as running:
        pids = running.up(3)
        running.process.terminate()
        assert set(running.hear(3)) == {("SIGTERM", pid) for pid in pids}
        assert running.end() == 0
        assert running.log.count(": started (pid ") == 3
        assert running.log.count(": ended (pid ") == 3


def test_a_crashed_process_is_restarted(start: Start) -> None:
    with start("serve") as running:
        first, second = running.up(2)
        os.kill(first, signal.SIGKILL)
        (third,) = running.up(1)
        os.kill(third, signal.SIGSEGV)
        (fourth,) = running.up(1)
        assert len({first, second, third, fourth}) == 4
        running.process.terminate()
        assert set(running.hear(2)) == {("SIGTERM", second), ("SIGTERM", fourth)}
        assert running.end() == 0
        assert "crashed: killed by SIGKILL after" in running.log
        assert "crashed: ended by SIGSEGV after" in running.log
        assert running.log.count("restarting in 0.") == 2


def test_each_process_gets_a_ctrl_c_once_and_every_further_signal(start: Start) -> None:
    with start("serve") as running:
        pids = running.up(2)
        os.killpg(running.process.pid, signal.SIGINT)
        assert set(running.hear(2)) == {("SIGINT", pid) for pid in pids}
        running.process.send_signal(signal.SIGTERM)
        assert set(running.hear(2)) == {("SIGTERM", pid) for pid in pids}
        assert running.end() == 0


def test_a_process_that_does_not_end_is_killed(start: Start) -> None:
    with start("stubborn", patience=0.1) as running:
        running.up(2)
        running.process.terminate()
        assert running.end() == 1
        assert running.log.count("crashed while it stopped: killed by SIGKILL") == 2


def test_processes_do_not_read_the_input_of_the_supervisor(start: Start) -> None:
    with start("reads") as running:
        assert [what for what, _ in running.hear(2)] == ["nothing", "nothing"]
        assert running.end() == 0


def test_processes_that_end_normally_are_not_restarted(start: Start) -> None:
    with start("nothing", processes=3) as running:
        assert running.end() == 0
        assert running.log.count(": started (pid ") == 3


@pytest.mark.parametrize("code", [2, 3], ids=["usage error", "no store"])
def test_an_error_that_a_restart_does_not_help_stops_all_processes_with_its_code(
    start: Start, tmp_path: Path, code: int
) -> None:
    with start("misread", str(tmp_path / "first"), str(code), processes=3) as running:
        assert running.end() == code
        assert f"exited with code {code}" in running.log
        assert "restarting" not in running.log


def test_a_process_that_could_use_the_store_before_is_restarted_until_it_can_again(
    start: Start, tmp_path: Path
) -> None:
    (starts := tmp_path / "starts").mkdir()
    with start("unlucky", str(starts), processes=1) as running:
        (pid,) = running.up(1)
        os.kill(pid, signal.SIGKILL)
        assert len(running.up(1)) == 1
        assert "exited with code 3" in running.log


def test_processes_stop_when_their_supervisor_is_killed(start: Start) -> None:
    with start("serve") as running:
        pids = running.up(2)
        running.process.kill()
        assert set(running.hear(2)) == {("SIGTERM", pid) for pid in pids}


def test_the_start_of_a_process_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tired(Exception):
        pass

    class Twice(Random):
        """Returns how long to wait, twice."""

        asked = 0

        def random(self) -> float:
            self.asked += 1
            if self.asked == 3:
                raise Tired
            return 0.0

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    # Not a real fork: this process has threads, the supervisor's has none.
    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Tired):
        supervise([], 1, shutdown_timeout=1, random=Twice())
    assert signal.getsignal(signal.SIGTERM) is before


def _unused(socket: str) -> StartedProcess:
    raise AssertionError("not started here")


def test_restart_pauses_grow_and_are_reset_after_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Most(Random):
        def random(self) -> float:
            return 1.0

    watched = supervisor._Supervisor(_unused, 1, 1.0, Most())
    (child,) = watched.children

    now = 1_000.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))

    def pause_after(lived: float) -> float:
        child.started = now - lived
        watched._on_end(child, 1, -signal.SIGSEGV)
        assert child.due is not None
        return round(child.due - now, 3)

    assert [pause_after(1) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pause_after(31) == 0.1


def test_a_recycled_process_is_replaced_without_a_pause_unless_all_stop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jobmill")
    watched = supervisor._Supervisor(_unused, 1, 1.0, Random())
    (child,) = watched.children
    for _ in range(3):
        watched._on_end(child, 1, RECYCLED)
        assert 0 < (child.due or 0) <= time.monotonic()
    watched._end_all(signal.SIGTERM)
    watched._on_end(child, 1, RECYCLED)
    assert watched.children[0].is_over
    assert watched._code == 0
    assert "crashed" not in caplog.text


def test_the_process_of_the_health_port_is_restarted_also_while_all_stop() -> None:
    watched = supervisor._Supervisor(_unused, 1, 1.0, Random())
    watched._port = port = supervisor._Child(0, "health port", _unused, LoopBackoff(Random()), due=None)
    watched._end_all(signal.SIGTERM)
    watched._on_end(port, 1, -signal.SIGKILL)
    assert port.due is not None
    assert watched._code == 0


def test_the_number_of_processes_is_validated() -> None:
    with pytest.raises(InvalidValue, match="processes: expected a whole number of at least 1, got 0"):
        supervise([], 0, shutdown_timeout=1)
