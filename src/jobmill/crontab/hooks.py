"""The hooks of a crontab: calls the user's functions, and passes their errors to `on_error`."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from jobmill.crontab.job import CrontabJob
from jobmill.errors import InvalidValue, shown
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.threads import Threads

log = logging.getLogger("jobmill")

OnDocument: TypeAlias = Callable[[CrontabJob], Awaitable[Any] | Any]
OnMoment: TypeAlias = Callable[[], Awaitable[Any] | Any]
OnError: TypeAlias = Callable[[BaseException, CrontabJob | None], Any] | Callable[[BaseException], Any]


class _HookCall:
    """One call of a hook."""

    def __init__(self, hooks: CrontabHooks) -> None:
        self.hooks = hooks
        self.is_over = False


#: The hook calls around the current code, also through tasks and threads that a hook has started.
_calls: ContextVar[tuple[_HookCall, ...]] = ContextVar("jobmill_crontab_calls", default=())


class CrontabHooks:
    """Only `document` raises the errors of its hook. A hook that is not callable is an InvalidValue."""

    def __init__(
        self,
        on_document: OnDocument | None,
        on_start: OnMoment | None,
        on_stop: OnMoment | None,
        on_idle: OnMoment | None,
        on_error: OnError | None,
    ) -> None:
        if on_document is None or not callable(on_document):
            raise InvalidValue("on_document", "a function that takes a job", on_document)
        self._on_document = on_document
        self._in_loop = _is_async(on_document)
        self._moments = {"on_start": on_start, "on_stop": on_stop, "on_idle": on_idle}
        self._on_error = on_error
        self._passes_job = on_error is None or _takes_two(on_error)
        for name, hook in {**self._moments, "on_error": on_error}.items():
            if hook is not None and not callable(hook):
                raise InvalidValue(name, "a function, or None", hook)

    async def document(self, job: CrontabJob, threads: Threads) -> None:
        """Run the handler, a sync one in a thread. Raises the error of the handler."""
        with self._call():
            if self._in_loop:
                await self._on_document(job)
                return
            answer = await threads.run(functools.partial(self._on_document, job))
            if inspect.isawaitable(answer):  # for example a lambda that calls an async function
                await answer

    async def moment(self, name: str) -> None:
        """Call the hook of a moment: start, stop or idle."""
        hook = self._moments[name]
        if hook is None:
            return
        try:
            await self._call_hook(hook)
        except BaseException as error:
            if must_propagate(error):
                raise
            await self.error(error, None)

    async def error(self, error: BaseException, job: CrontabJob | None) -> None:
        """Call `on_error`, with the job if there is one. Without the hook, log the error."""
        about = "the crontab" if job is None else f"the job {shown(job.id)}"
        if self._on_error is None:
            log.error("%s: %s: %s", about, type(error).__name__, error, exc_info=error)
            return
        try:
            await self._call_hook(self._on_error, *((error, job) if self._passes_job else (error,)))
        except BaseException as raised:
            if must_propagate(raised):
                raise
            log.exception("on_error raised an error while handling %s: %s (%s)", type(error).__name__, error, about)

    def is_calling(self) -> bool:
        """Whether the caller is a hook that has not returned, or a task that such a hook has started."""
        return any(call.hooks is self and not call.is_over for call in _calls.get())

    @contextmanager
    def _call(self) -> Iterator[None]:
        call = _HookCall(self)
        # Never reset: an abandoned coroutine ends in another context, where a reset would raise.
        _calls.set((*(before for before in _calls.get() if not before.is_over), call))
        try:
            yield
        finally:
            call.is_over = True

    async def _call_hook(self, hook: Callable[..., Any], *args: Any) -> None:
        with self._call():
            answer = hook(*args)
            if inspect.isawaitable(answer):
                await answer


def must_propagate(error: BaseException) -> bool:
    """Whether an exception must propagate: it ends the process, the loop or this task."""
    return isinstance(error, KeyboardInterrupt | GeneratorExit) or being_cancelled(error)


def _takes_two(hook: Callable[..., Any]) -> bool:
    """Whether the hook takes the job as a second argument."""
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        pass
    return True


def _is_async(hook: Callable[..., Any]) -> bool:
    """Whether the hook is `async def`, also as a method, a partial, or a callable object."""
    call = getattr(type(hook), "__call__", None)  # noqa: B004 - it is known to be callable
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(call)
