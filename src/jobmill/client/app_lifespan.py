"""The lifespan of a web application that uses a client: it opens the client, and may run a worker in the same process.

FastAPI, Starlette and Litestar take such a function; none of them is imported here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from jobmill.errors import InvalidValue
from jobmill.worker.options import WorkerOptions, worker_settings

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: Gets the application; what it yields is passed on to the framework.
AppLifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
#: At these limits a worker ends so that another process takes its place. A web server would not notice.
_LIMITS = ("max_jobs", "max_memory")


def app_lifespan(jobs: Client, *, worker: bool, inner: AppLifespan | None, options: WorkerOptions) -> AppLifespan:
    """A function for the `lifespan` of an application."""
    if options and not worker:
        raise InvalidValue("worker", "True, if options of a worker are given", worker)
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

                await stack.enter_async_context(Worker(jobs, **options))
            yield state

    return lifespan
