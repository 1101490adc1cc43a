"""The decorator that makes a function a handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, TypeVar, Unpack, overload

from jobmill.errors import InvalidValue
from jobmill.handlers.context import Context
from jobmill.handlers.handler import AsyncContextHandler, AsyncHandler, ContextHandler, Handler, PlainHandler
from jobmill.handlers.options import HandlerOptions

if TYPE_CHECKING:
    from jobmill.client.client import Client

P = ParamSpec("P")
R = TypeVar("R")


class HandlerDecorator:
    """What `jobs.handler` and `jobs.handler(...)` are, typed so that type checkers see the function's signature."""

    def __init__(self, client: Client, given: dict[str, Any]) -> None:
        self._client = client
        self._given = given

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context[Never], P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextHandler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context[Never], P], R], /) -> ContextHandler[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> PlainHandler[P, R]: ...
    @overload
    def __call__(self, **given: Unpack[HandlerOptions]) -> HandlerDecorator: ...
    def __call__(self, *fn: Callable[..., Any], **given: Any) -> Any:
        """Register the function, or take options for the function that follows."""
        options = self._given | given
        if not fn:
            return HandlerDecorator(self._client, options)
        (function,) = fn
        made: Handler[..., Any] = Handler(self._client, function, options)
        defined = self._client.defined_handlers
        if made.name in defined:
            other = defined[made.name].fn
            raise InvalidValue(
                "name", f"a name that no other handler has ({other.__module__}.{other.__qualname__} has it)", made.name
            )
        defined[made.name] = made
        return made
