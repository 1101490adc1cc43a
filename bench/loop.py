"""The event loop of the children that talk to a server: uvloop's, as `jobmill worker` and `pgq run` take it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, on uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def on_uvloop(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The same for a child to call: runs to the end, on uvloop where it is installed."""

    @functools.wraps(work)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(work(*args, **kwargs))

    return called


def on_asyncio(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The same for a child to call: runs to the end, on asyncio's own loop, for peers whose command takes that."""

    @functools.wraps(work)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(work(*args, **kwargs))

    return called
