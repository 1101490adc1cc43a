"""Wrappers: generator functions of the application that run around each run of a job, or each call that enqueues.

A wrapper begins before, waits at its `yield`, and ends after. So it can hold a span or a scope open meanwhile. An error
in a wrapper is logged and never affects a job.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct, structs

from jobmill.core.limits import check_headers
from jobmill.errors import InvalidValue

if TYPE_CHECKING:
    from jobmill.core.job import Job
    from jobmill.handlers.handler import Draft

log = logging.getLogger("jobmill")

#: What a wrapper is around. For a run it gets the context and, from its `yield`, a RunEnd. For a call that enqueues it
#: gets the list of drafts, which it may replace one by one, and from its `yield` the list of results.
Wrapped: TypeAlias = Literal["run", "enqueue"]
Wrapper: TypeAlias = Callable[..., Generator[None, Any, None]]
W = TypeVar("W", bound=Wrapper)


class RunEnd(Struct, frozen=True, kw_only=True):
    """How a run ended. The store has not accepted it yet."""

    #: lost: the job was cancelled, or its lease has ended.
    outcome: Literal["succeeded", "errored", "snoozed", "released", "lost"]
    #: What the handler raised. A TimeoutError or RuntimeError stands for an error that is no exception in this process.
    error: BaseException | None = None
    #: The qualified name of the class of the error, and the traceback as text. They also come from isolated processes.
    error_type: str | None = None
    traceback: str | None = None
    #: Whether the job has failed: it is not retried. A recurring job has failed this time.
    failed: bool = False


class Wrappers:
    """The wrappers of one application."""

    def __init__(self) -> None:
        self.run: list[Wrapper] = []
        self.enqueue: list[Wrapper] = []

    def add(self, what: str, wrapper: W) -> W:
        """Call `wrapper` around each run, or around each call that enqueues."""
        if what not in get_args(Wrapped):
            raise InvalidValue("around", "one of " + ", ".join(get_args(Wrapped)), what)
        if not inspect.isgeneratorfunction(wrapper):
            raise InvalidValue("around", "a generator function, which has one yield", wrapper)
        wrappers: list[Wrapper] = getattr(self, what)
        wrappers.append(wrapper)
        return wrapper


def add_headers(drafts: list[Draft], headers: dict[str, str]) -> None:
    """Add the context of a trace to drafts. Headers of a draft stay, and one that has no room for more gets none.

    A recurring job gets none: all its runs, for months, would belong to one trace.
    """
    for at, draft in enumerate(drafts):
        options, stored = draft.options, draft.options.stored
        if options.recurrence is None:
            with contextlib.suppress(InvalidValue):
                stored = structs.replace(stored, headers=check_headers(headers | (stored.headers or {})))
                drafts[at] = structs.replace(draft, options=structs.replace(options, stored=stored))


def waited_ms(job: Job) -> int:
    """How long a running job had been due when it was claimed."""
    return 0 if job.started_ms is None else max(0, job.started_ms - job.due_ms)


class Begun:
    """Wrappers that have begun. They end in the opposite order."""

    def __init__(self, wrappers: Iterable[Wrapper], argument: Any) -> None:
        started = [wrapper(argument) for wrapper in wrappers]
        self._waiting = [generator for generator in started if _step(generator, generator.__next__)]

    def end(self, value: Any) -> None:
        """Give each wrapper this value as the result of its `yield`."""
        for generator in reversed(self._waiting):
            if _step(generator, generator.send, value):
                generator.close()

    def fail(self, error: BaseException) -> None:
        """Raise this error at the `yield` of each wrapper."""
        for generator in reversed(self._waiting):
            if _step(generator, generator.throw, error):
                generator.close()


def _step(generator: Any, resume: Callable[..., None], *argument: Any) -> bool:
    """Let a wrapper run to its next `yield`; False if it has ended."""
    try:
        resume(*argument)
    except StopIteration:
        return False
    except BaseException as error:  # also SystemExit: no function of the user may stop the worker
        if error not in argument:
            log.exception("the wrapper %s raised an error; no job is affected", generator.__name__)
        return False
    return True
