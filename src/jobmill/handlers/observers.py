"""Observers: generator functions of the application that observe each run of a job, or each call that enqueues.

An observer begins before, waits at its `yield`, and ends after. So it can hold a span or a scope open meanwhile. An
error in an observer is logged and never affects a job.
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
    from jobmill.handlers.draft import Draft

log = logging.getLogger("jobmill")

#: What an observer observes. For a run it gets the context and, from its `yield`, a RunEnd. For a call that enqueues it
#: gets the list of drafts, which it may replace one by one, and from its `yield` the list of results.
Observed: TypeAlias = Literal["run", "enqueue"]
Observer: TypeAlias = Callable[..., Generator[None, Any, None]]
ObserverT = TypeVar("ObserverT", bound=Observer)


class RunEnd(Struct, frozen=True, kw_only=True):
    """How a run ended. The store has not accepted it yet."""

    #: lost: the job was cancelled, or its lease has ended.
    outcome: Literal["succeeded", "errored", "snoozed", "released", "suspended", "lost"]
    #: What the handler raised. A TimeoutError or RuntimeError stands for an error that is no exception in this process.
    error: BaseException | None = None
    #: The qualified name of the class of the error, and the traceback as text. They also come from isolated processes.
    error_type: str | None = None
    traceback: str | None = None
    #: Whether the job has failed: it is not retried. A recurring job has failed this time.
    failed: bool = False


class Observers:
    """The observers of one application."""

    def __init__(self) -> None:
        self.run: list[Observer] = []
        self.enqueue: list[Observer] = []

    def add(self, what: str, observer: ObserverT) -> ObserverT:
        """Let `observer` observe each run, or each call that enqueues."""
        if what not in get_args(Observed):
            raise InvalidValue("observe", "one of " + ", ".join(get_args(Observed)), what)
        if not inspect.isgeneratorfunction(observer):
            raise InvalidValue("observe", "a generator function, which has one yield", observer)
        observers: list[Observer] = getattr(self, what)
        observers.append(observer)
        return observer


def add_headers(drafts: list[Draft[Any]], headers: dict[str, str]) -> None:
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
    """Observers that have begun. They end in the opposite order."""

    def __init__(self, observers: Iterable[Observer], argument: Any) -> None:
        started = [observer(argument) for observer in observers]
        self._waiting = [generator for generator in started if _step(generator, generator.__next__)]

    def end(self, value: Any) -> None:
        """Give each observer this value as the result of its `yield`."""
        for generator in reversed(self._waiting):
            if _step(generator, generator.send, value):
                generator.close()

    def fail(self, error: BaseException) -> None:
        """Raise this error at the `yield` of each observer."""
        for generator in reversed(self._waiting):
            if _step(generator, generator.throw, error):
                generator.close()


def _step(generator: Any, resume: Callable[..., None], *argument: Any) -> bool:
    """Let an observer run to its next `yield`; False if it has ended."""
    try:
        resume(*argument)
    except StopIteration:
        return False
    except BaseException as error:  # also SystemExit: no function of the user may stop the worker
        if error not in argument:
            log.exception("the observer %s raised an error; no job is affected", generator.__name__)
        return False
    return True
