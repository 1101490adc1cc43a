"""Traces one job through the code: which functions of jobmill run between `enqueue()` and the settled job.

Only frames of the traced job count. Loops that run beside it (heartbeat, reporter, janitor, hooks) are left out by the
names of their tasks, and several jobs are traced: a function counts if it ran for most of them.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jobmill

SOURCE = str(Path(jobmill.__file__).parent) + "/"
#: Tasks of a worker that have nothing to do with one particular job.
BESIDE = (
    "jobmill heartbeat",
    "jobmill reporter",
    "jobmill janitor",
    "jobmill teller",
    "jobmill hooks",
    "jobmill usage",
)
TRACED_JOBS = 5


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

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do something that is no part of the walk."""
        self._is_on = False
        yield
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
        return False
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

    @jobs.handler
    async def greet(name: str) -> str:
        return name

    async with jobs, jobmill.Worker(jobs, concurrency=4):
        for _ in range(3):  # connections, caches, scripts
            await (await greet.enqueue(name="warm")).result(timeout=10)
            await _settled_down()
        traces = [await _traced(greet.enqueue, jobs, tracer) for _ in range(TRACED_JOBS)]
    counts = Counter(code for trace in traces for code in trace)
    return [code for code, count in counts.items() if count > TRACED_JOBS // 2]


async def _traced(enqueue: Callable[..., Any], jobs: jobmill.Client, tracer: Tracer) -> list[CodeType]:
    tracer.start()
    enqueued = await enqueue(name="x")
    is_final = False
    while not is_final:
        await asyncio.sleep(0.01)
        with tracer.paused():
            (job,) = await jobs.store.get([enqueued.id])
            is_final = job is not None and job.is_final
    await asyncio.sleep(0.05)
    called = tracer.stop()
    await _settled_down()
    return called


async def _settled_down() -> None:
    """Let the worker fall asleep again, so that every traced job finds it in the same state."""
    await asyncio.sleep(0.4)


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
