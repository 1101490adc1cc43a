"""Warns of async handlers that block the event loop for more than a third of the lease: no lease is extended meanwhile.

Nothing inside a blocked loop can run, so a thread watches it from outside. While the loop runs a task, the thread sends
it a call. If the call has not been made after a third of the lease, the tasks that the thread saw in that time are the
ones that block. An idle loop is never woken.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import FrameType
from typing import Any

from jobmill.worker.context import WorkerContext
from jobmill.worker.logs import about
from jobmill.worker.running import Run

log = logging.getLogger("jobmill")

#: The thread looks this often in a third of a lease, and at most every 10 ms.
LOOKS = 8
MIN_PAUSE_S = 0.01


class LoopMonitor:
    """The thread of one worker. Create and start it in the event loop that it is to watch."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._third = context.settings.lease_ms / 3000
        self._pause = max(self._third / LOOKS, MIN_PAUSE_S)
        self._closing = threading.Event()
        self._is_answered = True
        self._asked = 0.0
        #: What the loop ran since it was asked: each task in words, and its run if it is one.
        self._seen: dict[asyncio.Task[Any] | None, tuple[str, Run | None]] = {}
        self._thread = threading.Thread(target=self._watch, name="jobmill loop monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it, but not for a log handler that is slow."""
        self._closing.set()
        self._thread.join(1)

    def _watch(self) -> None:
        looked, has_warned = time.monotonic(), False
        while not self._closing.wait(self._pause) and not self._loop.is_closed():
            before, looked = looked, time.monotonic()
            if self._is_answered:
                has_warned = False
                self._ask(looked)
            elif looked - before > 3 * self._pause:
                # This thread could not run either: the machine or the process was suspended. No handler did that.
                self._asked, self._seen = looked, {}
            elif not has_warned:
                self._look()
                if looked - self._asked > self._third:
                    has_warned = True
                    self._warn(looked - self._asked)

    def _ask(self, now: float) -> None:
        if asyncio.current_task(self._loop) is not None:
            self._is_answered, self._asked, self._seen = False, now, {}
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # closed since the last check
                self._closing.set()

    def _answer(self) -> None:
        self._is_answered = True

    def _look(self) -> None:
        task = asyncio.current_task(self._loop)
        run = None if task is None else self._context.running.runs.get(task.get_name())
        frame = sys._current_frames().get(self._loop_thread)
        if run is not None and run.task is task:
            where = f"job {run.claimed.job.id}, {_position(frame, run.handler.fn)}"
            self._seen[task] = (f"handler {run.handler.name!r} ({where})", run)
        else:
            who = "a callback" if task is None else f"the task {task.get_name()!r}"
            self._seen[task] = (f"{who} ({_position(frame)})", None)

    def _warn(self, seconds: float) -> None:
        runs = [run for _, run in self._seen.values() if run is not None]
        others = "" if runs else f" while these async handlers ran: {', '.join(self._async_names()) or 'none'}"
        extra = {}
        if len(runs) == 1:
            job = runs[0].claimed.job
            extra = about(job, job.attempt, self._context.settings.name, runs[0])
        log.warning(
            "worker %s: its event loop has been blocked for %.1f s by %s%s, so it cannot extend leases. Make the "
            "handler a plain function, which runs in a thread, or await asyncio.to_thread(...) in it",
            self._context.settings.name,
            seconds,
            ", ".join(text for text, _ in self._seen.values()),
            others,
            extra=extra,
        )

    def _async_names(self) -> list[str]:
        runs = list(self._context.running.runs.values())
        return sorted({run.handler.name for run in runs if run.handler.is_async and not run.over})


def _position(frame: FrameType | None, function: Any = None) -> str:
    """File and line that run now: of this function if it is on the stack, else of the innermost function."""
    code, innermost = getattr(function, "__code__", None), frame
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    shown = frame or innermost
    return "unknown position" if shown is None else f"{shown.f_code.co_filename}:{shown.f_lineno}"
