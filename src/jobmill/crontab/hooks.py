"""The user's functions: how they are called, and where what they raise goes."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jobmill.crontab.job import CrontabJob
from jobmill.crontab.settings import OnDocument, OnError, OnMoment
from jobmill.errors import InvalidValue, shown
from jobmill.runtime.tasks import being_cancelled
from jobmill.runtime.threads import Threads

log = logging.getLogger("jobmill")


class _Call:
    """One call of a hook."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.is_over = False


#: The calls that led here, through tasks and threads that hooks have begun as well.
_calls: ContextVar[tuple[_Call, ...]] = ContextVar("jobmill_crontab_calls", default=())


class Hooks:
    """Nothing that a hook raises gets past here, except out of `document`. InvalidValue where one is no function."""

    def __init__(
        self,
        on_document: OnDocument | None,
        on_start: OnMoment | None,
        on_stop: OnMoment | None,
        on_idle: OnMoment | None,
        on_error: OnError | None,
    ) -> None:
        if on_document is None or not callable(on_document):
            raise InvalidValue("on_document", "the function that is called with each job", on_document)
        self._on_document = on_document
        self._in_loop = _is_async(on_document)
        self._moments = {"on_start": on_start, "on_stop": on_stop, "on_idle": on_idle}
        self._on_error = on_error
        self._tells_job = on_error is None or _takes_two(on_error)
        for name, hook in {**self._moments, "on_error": on_error}.items():
            if hook is not None and not callable(hook):
                raise InvalidValue(name, "a function, or None", hook)

    async def document(self, job: CrontabJob, threads: Threads) -> None:
        """Run the handler, one that is not async in a thread; it raises what the handler raised."""
        with self._call():
            if self._in_loop:
                await self._on_document(job)
                return
            answer = await threads.run(functools.partial(self._on_document, job))
            if inspect.isawaitable(answer):  # a lambda around an async function, say
                await answer

    async def moment(self, name: str) -> None:
        """Tell that it has started, has stopped or is idle."""
        hook = self._moments[name]
        if hook is None:
            return
        try:
            await self._called(hook)
        except BaseException as error:
            if is_to_pass(error):
                raise
            await self.error(error, None)

    async def error(self, error: BaseException, job: CrontabJob | None) -> None:
        """Tell of an error: of a job, or of none. Without the hook it is logged."""
        about = "the crontab" if job is None else f"the job {shown(job.id)}"
        if self._on_error is None:
            log.error("%s: %s: %s", about, type(error).__name__, error, exc_info=error)
            return
        try:
            await self._called(self._on_error, *((error, job) if self._tells_job else (error,)))
        except BaseException as raised:
            if is_to_pass(raised):
                raise
            log.exception("on_error raised when it was told of %s: %s (%s)", type(error).__name__, error, about)

    def is_calling(self) -> bool:
        """Whether it is a hook that asks, or what one has begun, and that hook has not returned."""
        return any(call.hooks is self and not call.is_over for call in _calls.get())

    @contextmanager
    def _call(self) -> Iterator[None]:
        call = _Call(self)
        # Never reset: a coroutine that is thrown away ends in another context, where that is an error.
        _calls.set((*(before for before in _calls.get() if not before.is_over), call))
        try:
            yield
        finally:
            call.is_over = True

    async def _called(self, hook: Callable[..., Any], *args: Any) -> None:
        with self._call():
            answer = hook(*args)
            if inspect.isawaitable(answer):
                await answer


def is_to_pass(error: BaseException) -> bool:
    """Whether what came out of a hook is no error of its own: somebody ends the process, the loop or this task."""
    return isinstance(error, KeyboardInterrupt | GeneratorExit) or being_cancelled(error)


def _takes_two(hook: Callable[..., Any]) -> bool:
    """Whether it wants to know of which job an error is."""
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function whose parameters Python does not know
        pass
    return True


def _is_async(hook: Callable[..., Any]) -> bool:
    """Whether it is `async def`, also as a method, a partial, or an object that is called."""
    called = getattr(type(hook), "__call__", None)  # noqa: B004 - whether it can be called is known
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(called)
