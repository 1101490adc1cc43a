"""Handlers: what a decorated function still is, and what cannot be one."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import jobmill
from jobmill import Client, Context, InvalidValue
from jobmill.core.retry import fixed
from tests.values import context

if TYPE_CHECKING:
    from fractions import Fraction


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


# ---------------------------------------------------------------------------------------------------- still a function


async def test_calling_a_handler_runs_it(jobs: Client) -> None:
    @jobs.handler()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    @jobs.handler()
    def join(*, left: str, right: str = "b") -> str:
        return left + right

    assert await add(1) == 3
    assert await add(a=1, b=1) == 2
    assert join(left="a") == "ab"
    assert await jobs.count() == []


async def test_calling_a_handler_with_a_context_runs_it(jobs: Client) -> None:
    @jobs.handler()
    async def add(ctx: Context, context: int) -> int:
        return ctx.attempt + context

    assert await add(context(errors=1), context=40) == 42
    assert await add(ctx=context(), context=1) == 2  # type: ignore[call-arg]


def test_a_call_is_not_validated(jobs: Client) -> None:
    @jobs.handler()
    def same(x: int) -> int:
        return x

    marker: Any = object()
    assert same(marker) is marker


def test_a_handler_looks_like_its_function(jobs: Client) -> None:
    @jobs.handler()
    async def greet(who: str, loud: bool = False) -> str:
        """Say hello."""
        return who

    assert (greet.__name__, greet.__doc__, greet.__module__) == ("greet", "Say hello.", __name__)
    assert greet.__qualname__.endswith("<locals>.greet")
    assert str(inspect.signature(greet)) == "(who: 'str', loud: 'bool' = False) -> 'str'"
    assert inspect.unwrap(greet) is greet.fn
    assert repr(greet) == f"<handler 'greet': {__name__}.{greet.__qualname__}>"


def test_an_async_handler_can_be_told_from_a_sync_one(jobs: Client) -> None:
    @jobs.handler()
    async def later() -> None: ...

    @jobs.handler()
    def now() -> None: ...

    assert (later.is_async, now.is_async) == (True, False)
    # Before 3.12 there is no mark that inspect itself looks at.
    told = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert (told(later), told(now)) == (True, False)


def test_a_method_can_be_a_handler(jobs: Client) -> None:
    class Mailer:
        def send(self, to: str) -> str:
            return f"to {to}"

    send = jobs.handler(name="send")(Mailer().send)
    assert send("ada") == "to ada"
    assert msgspec.json.decode(send.draft(to="ada").payload_json) == {"to": "ada"}


# ---------------------------------------------------------------------------------------------------- registering


def test_handlers_are_known_by_name(jobs: Client) -> None:
    @jobs.handler()
    def plain() -> None: ...

    @jobs.handler(name="mail:send/2")
    def named() -> None: ...

    assert jobs.handlers == {"plain": plain, "mail:send/2": named}
    assert jobs.handler_named("plain") is plain
    assert (plain.name, named.name) == ("plain", "mail:send/2")


def test_a_decorator_without_options_needs_no_brackets(jobs: Client) -> None:
    @jobs.handler
    def plain(a: int) -> int:
        return a

    @jobs.handler
    def with_a_context(ctx: Context, a: int) -> int:
        return a

    assert (plain(1), with_a_context(context(), 2)) == (1, 2)
    assert list(jobs.handlers) == ["plain", "with_a_context"]


def test_a_name_that_is_not_known_is_told_with_those_that_are(jobs: Client) -> None:
    with pytest.raises(jobmill.HandlerNotFound, match="no handler named 'nope' here; known: none"):
        jobs.handler_named("nope")
    jobs.handler(name="b")(lambda: None)
    jobs.handler(name="a")(lambda: None)
    with pytest.raises(jobmill.HandlerNotFound, match="known: a, b"):
        jobs.handler_named("nope")


def test_a_second_handler_of_a_name_is_refused(jobs: Client) -> None:
    @jobs.handler()
    def send() -> None: ...

    with pytest.raises(
        InvalidValue, match=r"name: expected a name that no other handler has \(.*send has it\), got 'send'"
    ):
        jobs.handler(name="send")(lambda: None)
    assert jobs.handlers == {"send": send}


def test_two_clients_may_have_handlers_of_one_name(jobs: Client) -> None:
    def send() -> None: ...

    other = jobmill.connect("memory://")
    assert jobs.handler()(send) is not other.handler()(send)


def test_a_handler_knows_whether_its_function_takes_a_context(jobs: Client) -> None:
    a = jobs.handler(name="a")(lambda: None)

    @jobs.handler()
    def b(ctx: Context, /, x: int) -> None: ...

    assert isinstance(a, jobmill.Handler)
    assert isinstance(b, jobmill.Handler)
    assert (a.arguments.takes_context, b.arguments.takes_context) == (False, True)


def test_options_of_a_handler(jobs: Client) -> None:
    def own(attempt: int, error: BaseException) -> float:
        return attempt

    @jobs.handler(
        queue="mail",
        priority=4,
        max_attempts=5,
        max_crashes=1,
        timeout="30s",
        keep_succeeded=False,
        keep_failed="1d",
        backoff=own,
        concurrency=2,
        isolate=True,
    )
    def send() -> None: ...

    assert (send.options_given.queue, send.options_given.priority) == ("mail", 4)
    assert (send.policy.max_attempts, send.policy.max_crashes, send.policy.timeout_ms) == (5, 1, 30_000)
    assert send.policy.keep_succeeded.at_once
    assert send.policy.keep_failed.age_ms == 86_400_000
    assert (send.own_backoff, send.concurrency, send.isolate) == (own, 2, True)


def test_a_backoff_that_is_not_a_function_is_stored(jobs: Client) -> None:
    send = jobs.handler(name="send", backoff=5)(lambda: None)
    assert (send.own_backoff, send.policy.backoff) == (None, fixed(5))


# ---------------------------------------------------------------------------------------------------- refused functions


def positional(x: int, /) -> None: ...


def star(*args: int) -> None: ...


def context_last(x: int, ctx: Context) -> None: ...


def context_by_name(*, ctx: Context) -> None: ...


def unresolved(x: Fraction) -> None: ...


def ambiguous(x: str | datetime) -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_async() -> AsyncIterator[int]:
    yield 1


class Called:
    def __call__(self, x: int) -> None: ...


BAD_FUNCTIONS: list[tuple[Any, str]] = [
    (positional, 'parameters that can be given by name, got "x: '),
    (star, r"parameters that can be given by name, got \"\*args"),
    (context_last, 'a Context only as its first parameter, got "ctx: '),
    (context_by_name, 'a Context only as its first parameter, got "ctx: '),
    (unresolved, "annotations that can be resolved .* name 'Fraction' is not defined; import the type at module level"),
    (ambiguous, "parameters that a payload can be validated for.* more than one str-like type"),
    (yields, "a function that returns"),
    (yields_async, "a function that returns"),
    (Called, "a function that returns, not a class"),
    (Called(), "a function with a signature"),
    (partial(positional, 1), "a function with a signature"),
]


@pytest.mark.parametrize(("fn", "message"), BAD_FUNCTIONS)
def test_a_function_that_cannot_be_a_handler_is_refused_where_it_is_defined(
    jobs: Client, fn: Any, message: str
) -> None:
    with pytest.raises(InvalidValue, match=f"handler: expected {message}"):
        jobs.handler(name="bad")(fn)
    assert jobs.handlers == {}
