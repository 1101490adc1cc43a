"""Handlers: functions that run the jobs of one name, with their options.

A decorated function can still be called: that runs it at once, without a queue.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from msgspec import Raw, structs

from jobmill.core.lifecycle import Policy, policy
from jobmill.core.limits import check_bool, check_int, check_name
from jobmill.errors import InvalidValue
from jobmill.handlers.context import Context
from jobmill.handlers.conversion import result_decoder
from jobmill.handlers.draft import Draft, EnqueuesDrafts, waiting_draft
from jobmill.handlers.enqueued import Enqueued
from jobmill.handlers.lane import LaneFromArguments, lane_function
from jobmill.handlers.options import (
    BackoffFunction,
    EnqueueOptions,
    Options,
    declared_options,
    enqueue_options,
    error_types,
    handler_options,
    isolate_mode,
)
from jobmill.handlers.placeholders import FoundPlaceholder
from jobmill.handlers.signature import Arguments

P = ParamSpec("P")
R = TypeVar("R")


class BoundHandler(Generic[P, R]):
    """A handler with options for the jobs that are enqueued through it."""

    def __init__(self, handler: Handler[P, R], options: Options, within: Any = None) -> None:
        self._handler = handler
        self._options = options
        self._within = within

    def __repr__(self) -> str:
        """The handler."""
        return f"<{self._handler!r} with options>"

    def draft(self, /, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        """The job as a value, for `jobs.enqueue_many` and for flows."""
        if self._within is not None:  # a draft has no connection, so the job would be outside of the transaction
            advice = f"jobs.enqueue_many([{self._handler.name}.draft(…)], within=…)"
            raise InvalidValue("within", "no transaction in the options of a draft", self._within, advice)
        return self._draft(args, kwargs)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R]:
        """Enqueue one job with these arguments."""
        # Not by `Draft.enqueue`, which would be one more coroutine for each job.
        return (await self._handler.client.enqueue_many((self._draft(args, kwargs),), within=self._within))[0]

    def _draft(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draft[R]:
        handler = self._handler
        try:
            encoded = handler.arguments.encode(args, kwargs)
        except FoundPlaceholder:
            return self._waiting_draft(args, kwargs)
        options = self._options if handler.own_lane is None else handler.with_lane(self._options, encoded)
        return Draft(handler.name, encoded, options, handler.client)

    def _waiting_draft(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draft[R]:
        handler = self._handler
        encode = partial(handler.arguments.encode_waiting, args, kwargs)
        return waiting_draft(handler.name, encode, handler.with_known_lane(self._options, args, kwargs), handler.client)


class Handler(BoundHandler[P, R]):
    """A function that runs the jobs of one name. `P` are its parameters, `R` is the type of its result."""

    __name__: str
    __qualname__: str

    def __init__(self, client: EnqueuesDrafts, fn: Callable[..., Any], given: dict[str, Any]) -> None:
        self.client = client
        self.fn = fn
        self.options_given = handler_options(given)
        super().__init__(self, self.options_given)
        self.name = check_name(getattr(fn, "__name__", None) if given.get("name") is None else given["name"])
        self.policy: Policy = policy(self.options_given.stored)
        own = given.get("backoff")
        self.own_backoff: BackoffFunction | None = own if callable(own) else None
        self.isolate = isolate_mode(given.get("isolate", False))
        concurrency = given.get("concurrency")
        self.concurrency = None if concurrency is None else check_int(concurrency, "concurrency", 1)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.keep_result = check_bool(given.get("keep_result", True), "keep_result")
        self.fail_on = error_types(given.get("fail_on", ()), "fail_on")
        self.retry_on = error_types(given.get("retry_on", ()), "retry_on")
        self.arguments = Arguments(fn)
        lane = lane_function(given.get("lane"))
        #: Makes the lane of a job from its arguments.
        self.own_lane = None if lane is None else LaneFromArguments(self.name, lane, self.arguments)
        #: Names of the parameters that positional arguments belong to, where a payload has `args` and `kwargs`.
        self.positional: tuple[str, ...] = ()
        #: The recurring job that every worker enqueues when it starts.
        self.declared = self._declared_draft(given)
        self.decode_result = result_decoder(fn, keep_result=self.keep_result)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(fn, attribute):
                setattr(self, attribute, getattr(fn, attribute))
        self.__wrapped__ = fn
        if self.is_async:
            _mark_as_async(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function at once, without a queue."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        """Name and function."""
        fn = self.__wrapped__
        where = f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
        return f"<handler {self.name!r}: {where}>"

    @property
    def takes_calls(self) -> bool:
        """Whether a payload has `args` and `kwargs` for another function: as tasks of Django and `compat.celery`."""
        return list(inspect.signature(self.fn).parameters)[-2:] == ["args", "kwargs"]

    def _declared_draft(self, given: dict[str, Any]) -> Draft[R] | None:
        options = declared_options(given, self.name, self.options_given)
        if options is None:
            return None
        if self.arguments.required:
            raise InvalidValue(
                "every" if given.get("cron") is None else "cron",
                f"a handler that can run without arguments (needed: {', '.join(self.arguments.required)})",
                self.name,
                f"give them defaults, or enqueue the recurring job: {self.name}.options(cron=…, key=…).enqueue(…)",
            )
        encoded = self.arguments.encode((), {})
        return Draft(self.name, encoded, self.with_lane(options, encoded), self.client)

    def with_lane(self, options: Options, payload_json: bytes) -> Options:
        """The options with the lane that the function of this handler makes, unless a lane was given for the job."""
        if self.own_lane is None or options.lane is not None:
            return options
        return structs.replace(options, lane=self.own_lane(self.arguments.decode(Raw(payload_json))))

    def with_known_lane(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Options:
        """The same for a draft with results of other drafts as arguments: the function must not need these."""
        if self.own_lane is None or options.lane is not None:
            return options
        return structs.replace(options, lane=self.own_lane(self.arguments.known(args, kwargs)))

    def retries(self, error: BaseException) -> bool:
        """Whether this error may be retried: `fail_on` does not name it, and `retry_on`, if given, does."""
        return not isinstance(error, self.fail_on) and (not self.retry_on or isinstance(error, self.retry_on))

    def options(self, *, within: Any = None, **given: Unpack[EnqueueOptions]) -> BoundHandler[P, R]:
        """The same handler with options for one job. `within` is a connection that has a transaction open."""
        return BoundHandler(self, enqueue_options(dict(given), self.options_given), within)


# For type checkers only (at run time every handler is a Handler): four ways to call one, because its function may be
# async and may take a Context first.


class PlainHandler(Handler[P, R]):
    """A handler whose function is not async."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncHandler(Handler[P, R]):
    """A handler whose function is async."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class ContextHandler(Handler[P, R]):
    """A handler whose function takes a Context before its payload."""

    if TYPE_CHECKING:

        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncContextHandler(Handler[P, R]):
    """A handler whose function is async and takes a Context before its payload."""

    if TYPE_CHECKING:

        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


def _mark_as_async(handler: Handler[..., Any]) -> None:
    """Make `inspect.iscoroutinefunction` true (before Python 3.12 only `asyncio.iscoroutinefunction`)."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(handler)
    else:
        vars(handler)["_is_coroutine"] = vars(asyncio.coroutines)["_is_coroutine"]
