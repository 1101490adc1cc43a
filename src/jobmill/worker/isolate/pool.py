"""`isolate="pool"`: processes of the fork server that run one attempt after the other."""

from __future__ import annotations

import asyncio
import time

from jobmill.core.lifecycle import Outcome
from jobmill.handlers.context import ReportFunction
from jobmill.worker.isolate.attempt import GRACE_S, outcome_of
from jobmill.worker.isolate.death import OutOfMemoryKills
from jobmill.worker.isolate.process import ForkedProcess
from jobmill.worker.isolate.protocol import FORK_POOLED, RecordFunction, Request
from jobmill.worker.isolate.server_link import ServerLink

#: A process of a pool ends after this many attempts.
MAX_ATTEMPTS = 1_000
#: It ends when its memory has grown to this multiple of its memory after the first attempt.
MAX_GROWTH = 2.0
#: It ends after this time without an attempt.
IDLE_S = 60.0


class Pool:
    """As many processes as attempts run at once. They are started on demand."""

    def __init__(self, link: ServerLink, kills: OutOfMemoryKills) -> None:
        self.link = link
        self._kills = kills
        self._loop = asyncio.get_running_loop()
        #: Processes that wait, with the time since when. The last one was used last, and is used first.
        self._idle: list[tuple[ForkedProcess, float]] = []
        self._retiring: set[ForkedProcess] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, request: Request, report: ReportFunction, record: RecordFunction | None = None) -> Outcome:
        """Run one attempt; OSError if a process is needed and cannot be started."""
        process = self._take() or ForkedProcess(self.link, FORK_POOLED, self._kills)
        process.start(request, report, record)
        try:
            return await outcome_of(process)
        finally:
            self._put_back(process)

    def _take(self) -> ForkedProcess | None:
        while self._idle:
            process, _ = self._idle.pop()
            if process.is_alive():
                return process
        return None

    def _put_back(self, process: ForkedProcess) -> None:
        if process.is_signalled or process.ended.done():
            return
        if _is_used_up(process):
            self._retire(process)
            return
        self._idle.append((process, time.monotonic()))
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        long_ago = time.monotonic() - IDLE_S
        while self._idle and self._idle[0][1] <= long_ago:
            self._retire(self._idle.pop(0)[0])
        self._timer = None
        if self._idle:
            self._timer = self._loop.call_at(self._loop.time() + self._idle[0][1] - long_ago, self._end_idle)

    def _retire(self, process: ForkedProcess) -> None:
        if not process.ended.done():
            self._retiring.add(process)
            process.ended.add_done_callback(lambda _: self._retiring.discard(process))
            process.retire()

    async def close(self) -> None:
        """End all processes, which get some time for it. No attempt runs any more."""
        if self._timer is not None:
            self._timer.cancel()
        for process, _ in self._idle:
            self._retire(process)
        self._idle.clear()
        if self._retiring:
            await asyncio.wait([process.ended for process in self._retiring], timeout=GRACE_S)


def _is_used_up(process: ForkedProcess) -> bool:
    assert process.idle is not None
    return process.attempts >= MAX_ATTEMPTS or process.idle.resident_bytes > MAX_GROWTH * process.first_bytes
