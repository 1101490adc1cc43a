"""Worker processes beside a web server. They end with the server, also when it is killed.

`python -m jobmill.frameworks.beside SETTINGS` is the supervisor of these processes. Its stdin is a pipe, and only the
server has the other end. The pipe closes when the server is gone, whatever ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from jobmill.cli.worker import to_argv
from jobmill.errors import InvalidValue
from jobmill.worker.isolate.death import signal_group
from jobmill.worker.options import WorkerOptions, worker_settings
from jobmill.worker.supervisor import KILL_AFTER_S, check_processes, supervise

#: How much longer than its workers the supervisor may take to end.
_MARGIN_S = 5.0


class Settings(Struct, frozen=True):
    """What the supervisor gets on its command line. The URL of the store is not among it: a module has it."""

    processes: int
    argv: list[str]
    shutdown_timeout: float
    health: int | str | None
    health_host: str


def settings(target: str, processes: int, options: WorkerOptions) -> Settings:
    """Validate the options of the workers that run the client `target`, such as "shop:jobs"."""
    check_processes(processes)
    if "name" in options:
        raise InvalidValue("name", "no name: each worker process needs its own", options["name"])
    checked = worker_settings(options, ())
    own = {name: value for name, value in options.items() if name not in ("health", "health_host")}
    # In the words of the command line, which knows fewer forms.
    words = {
        "queues": checked.queues,
        "lease": f"{checked.lease_ms}ms",
        "shutdown_timeout": f"{round(checked.shutdown_timeout * 1000)}ms",
    }
    own |= {name: value for name, value in words.items() if name in own}
    return Settings(
        processes,
        ["worker", target, *to_argv(own)],
        checked.shutdown_timeout,
        checked.health,
        checked.health_host,
    )


@contextlib.contextmanager
def workers_beside(given: Settings, environment: Mapping[str, str], *, waits: bool) -> Iterator[None]:
    """Run worker processes while the block runs.

    With `waits` SIGTERM ends the block, so that this process waits for its workers, and only then dies of the signal.
    That is for a server in this process. uvicorn handles SIGTERM while it serves, and raises it again at its end.
    """
    with _unwinding() if waits else contextlib.nullcontext():
        supervisor = subprocess.Popen(
            [sys.executable, "-m", __name__, msgspec.json.encode(given).decode()],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server, which then ends the workers
            env={**os.environ, **environment},
        )
        try:
            yield
        finally:
            _end(supervisor, given.shutdown_timeout + KILL_AFTER_S + _MARGIN_S)


def _end(supervisor: subprocess.Popen[bytes], patience_s: float) -> None:
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    try:
        supervisor.wait(patience_s)
    except subprocess.TimeoutExpired:
        signal_group(supervisor.pid, signal.SIGKILL)
        supervisor.wait()


class _Terminated(BaseException):
    """SIGTERM has arrived."""


@contextlib.contextmanager
def _unwinding() -> Iterator[None]:
    """Let SIGTERM end the block, and then this process, if nothing else handles it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def terminated(*_: object) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# ---------------------------------------------------------------------------------------------------- the supervisor


def main() -> int:
    """Supervise worker processes until they have ended, or the server has."""
    from jobmill.worker.stderr_log import log_to_stderr

    given = msgspec.json.decode(sys.argv[1], type=Settings)
    log_to_stderr(quiet=False, log_format="text")
    threading.Thread(target=_end_with_server, daemon=True).start()
    return supervise(
        given.argv,
        given.processes,
        shutdown_timeout=given.shutdown_timeout,
        health=given.health,
        health_host=given.health_host,
    )


def _end_with_server() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock a daemon thread would hold when the process ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
