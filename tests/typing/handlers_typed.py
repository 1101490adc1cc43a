"""What type checkers see of a handler: its function's own signature, without the Context where there is one.

Nothing here runs: `dev.py check` has mypy read it. A wrong call that mypy did not refuse would leave an unused ignore,
which is an error as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, assert_type

import jobmill
from jobmill import Client, Context, Enqueued, Event
from jobmill.handlers.draft import Draft
from jobmill.handlers.handler import ContextHandler, Handler

jobs: Client = jobmill.connect("memory://")


@jobs.handler(max_attempts=5, backoff=jobmill.exponential("1s", cap="1h"), timeout="30s")
async def send(to: str, subject: str = "hello", *, urgent: bool = False) -> str:
    return to


@jobs.handler
def count(context: Context, upto: int) -> list[int]:
    return list(range(upto))


@jobs.handler(cron="0 9 * * mon", timezone="Europe/Berlin", key="monday")
async def weekly(team: str = "ops") -> int:
    return 1


@jobs.handler(every=timedelta(minutes=10))
def often(context: Context) -> str:
    return ""


@jobs.handler(name="other", backoff=lambda attempt, error: attempt * 2.0, concurrency=2, isolate=True)
async def with_context(context: Context, key: str, *, retries: int = 1) -> None: ...


async def enqueueing() -> None:
    assert_type(await send.enqueue("ada"), Enqueued[str])
    assert_type(await send.enqueue(to="ada", subject="hi", urgent=True), Enqueued[str])
    assert_type(await send.options(delay="10m", priority=2).enqueue("ada"), Enqueued[str])
    assert_type(send.draft("ada"), Draft[str])
    assert_type(await jobs.enqueue_many([send.draft("ada"), count.options(id="x").draft(3)]), list[Enqueued[Any]])
    assert_type(await jobs.enqueue("send", {"to": "ada"}, cron="0 9 * * mon", key="k"), Enqueued[Any])

    await send.enqueue()  # type: ignore[call-arg]
    await send.enqueue(5)  # type: ignore[arg-type]
    await send.enqueue("ada", "hi", True)  # type: ignore[call-arg]
    await send.enqueue("ada", nope=1)  # type: ignore[call-arg]
    await send.options(delay="1m").enqueue(to=5)  # type: ignore[arg-type]
    send.draft(subject=5, to="ada")  # type: ignore[arg-type]
    send.options(color="red")  # type: ignore[call-arg]
    send.options(priority="high")  # type: ignore[arg-type]
    await jobs.enqueue("send", {}, delai=5)  # type: ignore[call-arg]


async def enqueueing_without_the_context() -> None:
    assert_type(await count.enqueue(3), Enqueued[list[int]])
    assert_type(await count.enqueue(upto=3), Enqueued[list[int]])
    assert_type(await with_context.options(every="1h", key="k").enqueue("x", retries=2), Enqueued[None])

    await count.enqueue()  # type: ignore[call-arg]
    await count.enqueue("three")  # type: ignore[arg-type]
    await count.enqueue(Context, 3)  # type: ignore[call-arg, arg-type]
    await with_context.enqueue("x", 2)  # type: ignore[call-arg]


async def enqueueing_what_recurs() -> None:
    assert_type(await weekly.enqueue(team="web"), Enqueued[int])
    assert_type(await often.enqueue(), Enqueued[str])
    await weekly.enqueue(team=5)  # type: ignore[arg-type]
    await often.enqueue("x")  # type: ignore[call-arg]


async def calling(context: Context) -> None:
    assert_type(await send("ada", urgent=True), str)
    assert_type(count(context, 3), list[int])
    assert_type(count(context, upto=3), list[int])
    await with_context(context, "x")

    send(5)  # type: ignore[arg-type, unused-coroutine]
    count(3)  # type: ignore[call-arg, arg-type]


def handlers_themselves() -> None:
    plain: Handler[..., str] = send
    taking_context: ContextHandler[[int], list[int]] = count
    assert_type(plain.__name__, str)
    assert_type(taking_context.is_async, bool)


def wrong_options() -> None:
    jobs.handler(delay=5)  # type: ignore[call-overload]
    jobs.handler(max_attempts="many")  # type: ignore[call-overload]
    jobs.handler(backoff=lambda attempt: 5)  # type: ignore[arg-type, misc]
    jobs.handler(cron=5)  # type: ignore[call-overload]
    jobs.handler(every=None)  # type: ignore[call-overload]
    jobs.handler(until=5)  # type: ignore[call-overload]


@jobs.on("succeeded")
async def hook(event: Event) -> int:
    return 5


async def results() -> None:
    assert_type(await hook(Event(type="x", job_id="1", name="n", queue="q", at_ms=1)), int)
    assert_type(jobs.sync(send.enqueue("ada")), Enqueued[str])
    assert_type(await (await send.enqueue("ada")).result(timeout=5), str)
    assert_type(await (await count.enqueue(3)).result(), list[int])
    assert_type((await jobs.find(states="waiting", queue="mail")).next, str | None)
    assert_type(await jobs.cancel(states=["waiting", "failed"]), jobmill.Changed)

    await jobs.find(states="done")  # type: ignore[arg-type]
    await jobs.cancel(color="red")  # type: ignore[call-arg]


def without_a_loop() -> None:
    assert_type(jobs.sync.get("id"), jobmill.Job)
    assert_type(jobs.sync.enqueue("send", {"to": "ada"}, delay="1m"), Enqueued[Any])
    assert_type(jobs.sync.find(limit=5, queue="mail"), jobmill.Page)
    assert_type(jobs.sync.find_all(states="failed"), Iterator[jobmill.Job])
    assert_type(jobs.sync.queue("mail").pause(), jobmill.QueueSettings)

    jobs.sync.nope()  # type: ignore[attr-defined]
    jobs.sync.get(5)  # type: ignore[arg-type]
    jobs.sync.find(color="red")  # type: ignore[call-arg]
    jobs.sync.queue("mail").nope()  # type: ignore[attr-defined]


class State:
    """What the application opens once in each worker."""

    count: int


@jobs.lifespan
async def database() -> AsyncIterator[State]:
    yield State()


@jobs.lifespan
@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


@jobs.around
async def session(context: Context[State]) -> AsyncIterator[None]:
    assert_type(context.state, State)
    yield


@jobs.around
def plain_session(context: Context) -> Iterator[None]:
    assert_type(context.state, object)
    yield


@jobs.handler
async def with_state(context: Context[State], to: str) -> int:
    assert_type(context.state, State)
    context.state.nope  # type: ignore[attr-defined]  # noqa: B018
    return context.state.count


@jobs.handler(timeout="5s")
def with_state_in_thread(context: Context[State]) -> int:
    return context.state.count


async def handlers_with_state(context: Context[State], other: Context[str]) -> None:
    assert_type(await with_state.enqueue("ada"), Enqueued[int])
    assert_type(await with_state(context, "ada"), int)
    assert_type(await with_state_in_thread.enqueue(), Enqueued[int])
    # What the decorators return can be called as it was.
    assert_type(database, Callable[[], AsyncIterator[State]])
    assert_type(session(context), AsyncIterator[None])

    await with_state.enqueue(5)  # type: ignore[arg-type]
    await with_state.enqueue()  # type: ignore[call-arg]
    session(other)  # type: ignore[arg-type]


def wrong_lifespans() -> None:
    def plain() -> Iterator[int]:
        yield 1

    async def returns(context: Context) -> None: ...

    jobs.lifespan(plain)  # type: ignore[type-var]
    jobs.lifespan(session)  # type: ignore[type-var]
    jobs.around(returns)  # type: ignore[type-var]
    jobs.around("run")  # type: ignore[type-var]
