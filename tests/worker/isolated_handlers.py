"""Handlers that run in isolated processes and misbehave there."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import ctypes
import logging
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextvars import ContextVar
from typing import Any

import jobmill

jobs = jobmill.connect("memory://")


@jobs.handler(isolate=True)
async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@jobs.handler(isolate=True)
def pid() -> int:
    return os.getpid()


@jobs.handler(isolate=True)
def about(context: jobmill.Context) -> dict[str, Any]:
    return {
        "attempt": context.attempt,
        "fence": context.fence,
        "cancelled": context.cancelled,
        "job": context.job.to_dict(),
        "leads_session": os.getsid(0) == os.getpid(),
        "argv": sys.argv,
    }


@jobs.handler(isolate=True, name="by-another-name")
def renamed() -> str:
    return "found"


def _undecorated() -> str:
    return "found by looking around"


kept_elsewhere = jobs.handler(isolate=True)(_undecorated)


@jobs.handler(isolate=True)
def segfault() -> None:
    ctypes.string_at(0)


@jobs.handler(isolate=True)
def exit_with(code: int) -> None:
    os._exit(code)


@jobs.handler(isolate=True)
def die_by(signum: int, mb: int = 0) -> None:
    used = b"x" * (mb * 1_000_000)
    os.kill(os.getpid(), signum)
    time.sleep(60)
    del used


@jobs.handler(isolate=True)
def fork_and_segfault() -> None:
    if os.fork() == 0:
        signal.pause()
    ctypes.string_at(0)


@jobs.handler(isolate=True)
def raises(message: str) -> None:
    raise ValueError(message)


@jobs.handler(isolate=True)
async def raises_async(message: str) -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


@jobs.handler(isolate=True, backoff=lambda attempt, error: 100 * attempt)
def raises_with_own_backoff() -> None:
    raise ValueError("no")


@jobs.handler(isolate=True)
def system_exit() -> None:
    sys.exit(3)


@jobs.handler(isolate=True)
def gives_up() -> None:
    raise jobmill.Fail("never again")


@jobs.handler(isolate=True)
def snoozes(context: jobmill.Context) -> None:
    context.snooze("5s")


@jobs.handler(isolate=True)
def tells(context: jobmill.Context, fifo: str) -> str:
    context.progress(50, "half \ud800")
    context.log("a line", "warning")
    with open(fifo) as answer:  # opened for writing by the test, when it has heard all this
        return answer.read()


@jobs.handler(isolate=True)
def mirror(text: str) -> str:
    return text[::-1]


@jobs.handler(isolate=True)
def not_json() -> object:
    return {1, 2}


@jobs.handler(isolate=True)
def waits(fifo: str, stubborn: bool = False) -> None:
    """Hold a named pipe open for ever, in this process and in a child."""
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(fifo, "w") as held:
        subprocess.Popen(["sleep", "600"], stdout=held)
        held.write(f"{os.getppid()}\n")
        held.flush()
        while True:
            signal.pause()


@jobs.handler(isolate=True)
def leaves_a_process(fifo: str) -> str:
    with open(fifo, "w") as held:
        subprocess.Popen(["sleep", "600"], stdout=held)
    return "done"


@jobs.handler(isolate=True)
def leaves_a_thread() -> str:
    import threading

    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"


@jobs.handler(isolate=True)
def garbles() -> None:
    # Its number is that of the parent's pipe, and a long run of tests has many files open.
    for fd in range(3, 4_096):
        try:
            os.write(fd, b"x" * 100)
        except OSError:
            continue
    time.sleep(60)


@jobs.handler(isolate=True, keep_result=False)
def drops_its_result() -> set[int]:
    return {1}


@jobs.handler(isolate=True, retry_on=ConnectionError)
def retries_by_type(kind: str) -> None:
    raise getattr(builtins, kind)("x")


log = logging.getLogger("isolated")


def _copy_lines() -> None:
    copied = jobmill.JobLogHandler()
    copied.addFilter(jobmill.JobLogFilter())
    fields = " ".join(f"%({field})s" for field in ("job_id", "job_name", "queue", "attempt", "fence", "worker"))
    copied.setFormatter(logging.Formatter(f"{fields}: %(message)s %(trace_id)s", defaults={"trace_id": "untraced"}))
    log.handlers = [copied]


@jobs.handler(isolate=True)
def logs_lines() -> None:
    _copy_lines()
    log.warning("sent")


@jobs.handler(isolate=True)
async def logs_lines_async() -> None:
    _copy_lines()
    log.warning("sent")


# ---------------------------------------------------------------------------------------------------- memory and state

calls = 0
grown: list[bytes] = []
variable: ContextVar[str] = ContextVar("variable", default="unset")


@jobs.handler(isolate=True)
def counts() -> list[int]:
    global calls  # noqa: PLW0603 - whether this memory is that of an earlier attempt is what the tests ask
    calls += 1
    return [calls, os.getpid()]


@jobs.handler(isolate=True)
def server_pid() -> int:
    return os.getppid()


@jobs.handler(isolate=True)
def numbers() -> list[float]:
    return [random.random(), float(uuid.uuid4().int)]


@jobs.handler(isolate=True)
def open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


@jobs.handler(isolate=True)
def grows() -> int:
    grown.append(os.urandom(1_000_000) * 100)
    return os.getpid()


@jobs.handler(isolate=True)
def leaves_a_daemon(fifo: str) -> int:
    """Leave a process behind that has no parent."""
    with open(fifo, "w") as held:
        subprocess.run(["sh", "-c", "sleep 600 &"], stdout=held, check=True)
    return os.getpid()


@jobs.handler(isolate=True)
def leaves_a_daemon_thread() -> int:
    import threading

    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


def _state() -> list[Any]:
    umask = os.umask(0o22)
    os.umask(umask)
    directory, ignores = os.getcwd(), signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    return [directory, os.environ.get("LEFT_BEHIND"), umask, ignores, variable.get()]


@jobs.handler(isolate=True)
def state() -> list[Any]:
    return [*_state(), os.getpid()]


@jobs.handler(isolate=True)
def changes_state() -> int:
    before = _state()
    os.chdir("/")
    os.environ["LEFT_BEHIND"] = "yes"
    os.umask(0o77)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    variable.set("set")
    assert all(one != other for one, other in zip(before, _state(), strict=True))
    return os.getpid()
