"""Traces one job through the code: which functions of jobmill run between `enqueue()` and the settled job.

Only frames of the traced job count. Loops that run beside it (heartbeat, reporter, janitor, hooks) are left out by the
names of their tasks and threads, and several jobs are traced: a function counts if it ran for most of them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import jobmill

SOURCE = str(Path(jobmill.__file__).parent) + "/"
#: Tasks and threads of a worker that have nothing to do with one particular job.
BESIDE = (
    "jobmill heartbeat",
    "jobmill reporter",
    "jobmill janitor",
    "jobmill teller",
    "jobmill hooks",
    "jobmill usage",
    "jobmill memory",
    "jobmill loop monitor",
)
TRACED_JOBS = 5
#: Before these, connections, caches and scripts are made.
WARM_UP_JOBS = 3
#: How long after its handler ran a job is settled, and how long after that the worker sleeps again.
SETTLED_AFTER_S = 0.3
ASLEEP_AFTER_S = 0.4


class Tracer:
    """Collects the code of every function of jobmill that is called while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._called: dict[CodeType, None] = {}

    def install(self) -> None:
        """Trace this thread and all that start after it."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        self._called = {}
        self._is_on = True

    def stop(self) -> list[CodeType]:
        """What was called since `start`, in the order of the first calls."""
        self._is_on = False
        return list(self._called)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self._is_on and event == "call" and frame.f_code.co_filename.startswith(SOURCE) and not _is_beside():
            self._called[frame.f_code] = None


def _is_beside() -> bool:
    if asyncio._get_running_loop() is None:
        return threading.current_thread().name.startswith(BESIDE)
    task = asyncio.current_task()
    return task is not None and task.get_name().startswith(BESIDE)


async def walk(url: str, migrate: bool) -> list[CodeType]:
    """The functions that one job runs through, on this store."""
    tracer = Tracer()
    tracer.install()
    try:
        return await _walk(url, migrate, tracer)
    finally:
        tracer.remove()


async def _walk(url: str, migrate: bool, tracer: Tracer) -> list[CodeType]:
    jobs = jobmill.connect(url)
    if migrate:
        await jobs.store.migrate()

    ran = asyncio.Event()

    @jobs.handler
    async def greet(name: str) -> str:
        ran.set()
        return name

    async def traced_job() -> list[CodeType]:
        """What one job ran through; nothing where it was not settled while it was traced."""
        ran.clear()
        tracer.start()
        enqueued = await greet.enqueue(name="x")
        async with asyncio.timeout(10):
            await ran.wait()
        await asyncio.sleep(SETTLED_AFTER_S)
        called = tracer.stop()
        is_settled = (await enqueued.job()).is_final
        # The worker falls asleep again, so that every traced job finds it in the same state.
        await asyncio.sleep(ASLEEP_AFTER_S)
        return called if is_settled else []

    async with jobs, jobmill.Worker(jobs, concurrency=4):
        for _ in range(WARM_UP_JOBS):
            await traced_job()
        traces: list[list[CodeType]] = []
        async with asyncio.timeout(240):
            while len(traces) < TRACED_JOBS:
                traces += [called for called in [await traced_job()] if called]
    counts = Counter(code for trace in traces for code in trace)
    return [code for code, count in counts.items() if count > TRACED_JOBS // 2]


def lines_of(code: CodeType) -> int:
    """The lines of a function without its docstring; a lambda or a comprehension stands within another function."""
    if "<" in code.co_qualname.rpartition(".")[2]:
        return 0
    lines, _ = inspect.getsourcelines(code)
    (function,) = ast.parse(textwrap.dedent("".join(lines))).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    first = function.body[0]
    has_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    assert first.end_lineno is not None
    return len(lines) - (first.end_lineno - first.lineno + 1 if has_docstring else 0)
