"""The lifespan of a web application that uses a client: it opens the client, and may run a worker in the same process.

FastAPI, Starlette and Litestar take such a function; none of them is imported here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from jobmill.errors import InvalidValue
from jobmill.runtime.tasks import end
from jobmill.stores.common.callers import packages_of
from jobmill.worker.options import WorkerOptions, worker_settings

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.worker.worker import Worker

log = logging.getLogger("jobmill")

#: Gets the application; what it yields is passed on to the framework.
AppLifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
#: Says whether the web server has begun to stop.
IsStopping: TypeAlias = Callable[[], bool]
#: At these limits a worker ends so that another process takes its place. A web server would not notice.
_LIMITS = ("max_jobs", "max_memory")
#: How often the worker asks whether the server stops.
ASK_EVERY_S = 0.1


def app_lifespan(
    jobs: Client,
    *,
    worker: bool | None,
    inner: AppLifespan | None,
    is_stopping: IsStopping | None,
    options: WorkerOptions,
) -> AppLifespan:
    """A function for the `lifespan` of an application."""
    if (options or is_stopping) and worker is None:
        raise InvalidValue("worker", "True or False, if options of a worker are given", worker)
    if is_stopping is not None and not callable(is_stopping):
        raise InvalidValue("is_stopping", "a function that says whether the server stops", is_stopping)
    for name in _LIMITS:
        if name in options:
            raise InvalidValue(name, "an option of a worker in a process of its own", options.get(name))
    worker_settings(options, ())  # refuses a wrong option now, not when the server starts

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(jobs)
            # The worker is innermost: its handlers may use all that the application has opened.
            state = None if inner is None else await stack.enter_async_context(inner(app))
            if worker:
                from jobmill.worker.worker import Worker

                inside = await stack.enter_async_context(Worker(jobs, **options))
                if asks := is_stopping or _asks_uvicorn():
                    stopping = asyncio.create_task(_stop_with(inside, asks), name="jobmill stop with the server")
                    stack.push_async_callback(end, [stopping])
            yield state

    return lifespan


def _asks_uvicorn() -> IsStopping | None:
    """Asks the uvicorn server that this process runs; None with another server.

    uvicorn does not tell an application that it stops until all requests have ended. Its handler of SIGTERM is a method
    of the server, which notes the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    server: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return (lambda: bool(server.should_exit)) if "uvicorn" in packages_of(server) else None


async def _stop_with(worker: Worker, is_stopping: IsStopping) -> None:
    """Stop the worker when its server begins to stop. The end of the lifespan waits for the same stop."""
    try:
        while not is_stopping():  # noqa: ASYNC110 - a server has only a flag
            await asyncio.sleep(ASK_EVERY_S)
    except Exception:
        log.exception(
            "worker %s cannot ask whether its server stops: it claims jobs until the lifespan ends", worker.name
        )
        return
    await worker.stop()
