"""Around: functions of the application that wrap each run of a job, as context managers, and are part of the run.

An error in one of them is an error of the attempt. Each gets the context, and sees at its `yield` what the handler
raised. Async ones run in the event loop. Plain ones run where the handler runs, for example in the thread of a handler
that is not async, and always inside of the async ones.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any, TypeAlias, TypeVar

from jobmill.errors import InvalidValue
from jobmill.handlers.context import Context

AroundFunction: TypeAlias = Callable[
    [Any], AsyncIterator[None] | AbstractAsyncContextManager[Any] | Iterator[None] | AbstractContextManager[Any]
]
AroundT = TypeVar("AroundT", bound=AroundFunction)


class Around:
    """The functions that are around each run in one application, in the order given."""

    def __init__(self) -> None:
        #: All of them, as they were given.
        self.functions: list[AroundFunction] = []
        self._async: list[Callable[[Context], AbstractAsyncContextManager[Any]]] = []
        self._plain: list[Callable[[Context], AbstractContextManager[Any]]] = []

    def add(self, function: AroundT) -> AroundT:
        """Call `function` around each run."""
        made = async_manager(function)
        if made is not None:
            self._async.append(made)
        elif inspect.isgeneratorfunction(function):
            self._plain.append(contextmanager(function))
        elif inspect.isgeneratorfunction(inspect.unwrap(function)):
            self._plain.append(function)  # type: ignore[arg-type]
        else:
            raise InvalidValue(
                "around", "an async generator function or a generator function, with one yield", function
            )
        self.functions.append(function)
        return function

    async def run(
        self,
        context: Context,
        call: Callable[[], Any],
        *,
        is_async: bool,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> Any:
        """Call a handler inside of all functions; `in_thread` calls one that is not async."""
        async with AsyncExitStack() as stack:
            for function in self._async:
                await stack.enter_async_context(function(context))
            if not is_async:
                return await in_thread(partial(self._call, context, call))
            for plain in self._plain:
                stack.enter_context(plain(context))
            return await call()

    def _call(self, context: Context, call: Callable[[], Any]) -> Any:
        with ExitStack() as stack:
            for function in self._plain:
                stack.enter_context(function(context))
            return call()


def async_manager(function: Any) -> Callable[..., AbstractAsyncContextManager[Any]] | None:
    """An async generator function as a function that returns an async context manager; None for anything else.

    A function that `contextlib.asynccontextmanager` has made stays as it is.
    """
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    if callable(function) and inspect.isasyncgenfunction(inspect.unwrap(function)):
        made: Callable[..., AbstractAsyncContextManager[Any]] = function
        return made
    return None
