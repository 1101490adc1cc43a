"""Isolated attempts of one worker: chooses between the fork server, its pool and a new interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Mapping
from typing import Any

from jobmill.core.job import Job
from jobmill.core.lifecycle import Errored, Outcome
from jobmill.errors import InvalidValue
from jobmill.handlers.context import ReportFunction
from jobmill.handlers.durable import RunAccess
from jobmill.handlers.handler import Handler
from jobmill.worker import stderr_log
from jobmill.worker.durable import may_have_recorded
from jobmill.worker.isolate.attempt import outcome_of
from jobmill.worker.isolate.death import OutOfMemoryKills
from jobmill.worker.isolate.find import Where, where_is
from jobmill.worker.isolate.pool import Pool
from jobmill.worker.isolate.process import ForkedProcess
from jobmill.worker.isolate.protocol import FORK_ONCE, Request
from jobmill.worker.isolate.server_link import ServerDied, ServerLink
from jobmill.worker.isolate.spawn import run_spawned
from jobmill.worker.outcomes import raised

log = logging.getLogger("jobmill")

#: How long the fork server may take to import the handlers.
START_S = 60.0


class Isolation:
    """Runs the attempts of isolated handlers. The fork server starts with the first attempt that needs it."""

    def __init__(self, handlers: Mapping[str, Handler[..., Any]]) -> None:
        self._handlers = handlers
        self._kills = OutOfMemoryKills()
        self._starting: asyncio.Task[Pool | None] | None = None
        # Forking is safe only on Linux: libraries of macOS start threads that Python does not know.
        self._spawns = sys.platform != "linux"
        self._warned = False

    async def run(
        self,
        handler: Handler[..., Any],
        job: Job,
        report: ReportFunction,
        trace_id: str | None = None,
        access: RunAccess | None = None,
    ) -> Outcome:
        """Run one attempt of a job in a separate process and return its outcome.

        When this returns or raises, nothing of the attempt runs any more, also after a cancellation.
        """
        try:
            where = where_is(handler)
        except InvalidValue as error:
            return raised(error, handler, job.attempt)
        request = Request(where=where, job=job, trace_id=trace_id, log_options=stderr_log.options)
        if access is not None:
            request = await _with_past(request, access)
        record = None if access is None else access.record
        try:
            pool = None if handler.isolate == "spawn" else await self._pool()
            if pool is None:
                if handler.isolate == "pool":
                    self._warn_once('isolate="pool" needs Linux; each attempt starts a new interpreter instead')
                return await run_spawned(request, report, self._kills, record)
            if handler.isolate == "pool":
                return await pool.run(request, report, record)
            process = ForkedProcess(pool.link, FORK_ONCE, self._kills)
        except OSError as error:
            return Errored(error=f"process could not be started: {error}")
        process.start(request, report, record)
        return await outcome_of(process)

    async def _pool(self) -> Pool | None:
        """The pool of the fork server, which is started if it does not run; None if this worker must not fork."""
        if self._spawns:
            return None
        if self._starting is None or not self._is_usable(self._starting):
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="jobmill fork server")
        return await asyncio.shield(self._starting)

    def _is_usable(self, starting: asyncio.Task[Pool | None]) -> bool:
        if not starting.done():
            return True
        pool = None if starting.cancelled() or starting.exception() else starting.result()
        return pool is not None and pool.link.is_open

    async def _start(self) -> Pool | None:
        link = await ServerLink.start(self._wheres())
        try:
            threaded = await asyncio.wait_for(link.ready, START_S)
        except ServerDied as error:
            why = f"the fork server ended while it imported the handlers ({error})"
        except TimeoutError:
            why = f"the fork server did not import the handlers within {START_S:g} s"
        else:
            if not threaded:
                return Pool(link, self._kills)
            why = f"the import of {threaded} starts threads, and a process with threads cannot be forked safely"
        self._spawns = True
        link.kill()
        await link.close()
        self._warn_once(f'{why}; each attempt starts a new interpreter instead, as with isolate="spawn"')
        return None

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("isolated handlers: %s", text)

    def _wheres(self) -> list[Where]:
        wheres = []
        for handler in self._handlers.values():
            if handler.isolate and handler.isolate != "spawn":
                # A handler that cannot be found is an error of its attempts.
                with contextlib.suppress(InvalidValue):
                    wheres.append(where_is(handler))
        return wheres

    async def close(self) -> None:
        """End the fork server and the processes of its pool. No attempt runs any more."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self._is_usable(self._starting):
                pool = self._starting.result()
                assert pool is not None
                await pool.close()
                await pool.link.close()


async def _with_past(request: Request, access: RunAccess) -> Request:
    """The request with what earlier runs have left. A signal that came before the first run is read by the second."""
    job = request.job
    recorded = await access.recorded() if may_have_recorded(job) else request.recorded
    dependencies = await access.dependencies() if job.dependencies else ()
    return request.with_past(recorded, dependencies, access.now_ms())
