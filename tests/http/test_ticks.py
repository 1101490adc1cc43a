"""Ticks with several requests, disconnects and shutdowns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.http import TickEndpoint
from tests.helpers import until
from tests.http.requests import Heard, ask, body, receiving, scope


class Gate:
    """A handler that waits to be let through, and how many ticks there were."""

    def __init__(self, jobs: Client) -> None:
        self.entered = 0
        self.ticks = 0
        self.open = asyncio.Event()

        @jobs.handler()
        async def pass_gate() -> None:
            self.entered += 1
            await self.open.wait()

        @jobs.on("start")
        def count(_: object) -> None:
            self.ticks += 1

        self.handler = pass_gate

    async def until_entered(self, many: int = 1) -> None:
        await until(lambda: self.entered >= many)


@pytest.fixture
def gate(jobs: Client) -> Gate:
    return Gate(jobs)


def asking(endpoint: TickEndpoint) -> asyncio.Task[Heard]:
    return asyncio.create_task(asyncio.wait_for(ask(endpoint), 20))


async def turns(many: int = 20) -> None:
    """Let all tasks continue."""
    for _ in range(many):
        await asyncio.sleep(0)


async def state(enqueued: jobmill.Enqueued[Any]) -> tuple[str, int, int]:
    job = await enqueued.job()
    return job.state, job.errors, job.crashes


# ---------------------------------------------------------------------------------------------------- several


async def test_requests_during_a_tick_share_the_next_one(jobs: Client, gate: Gate) -> None:
    endpoint = TickEndpoint(jobs, limit=2)
    await jobs.enqueue_many([gate.handler.draft() for _ in range(5)])
    first = asking(endpoint)
    await gate.until_entered(2)
    others = [asking(endpoint) for _ in range(3)]
    await turns()
    # Never more than the limit at a time.
    assert (gate.entered, gate.ticks) == (2, 1)
    gate.open.set()
    assert (await first).body["succeeded"] == 2
    assert [(await other).body["succeeded"] for other in others] == [2, 2, 2]
    assert (gate.entered, gate.ticks) == (4, 2)
    assert (await ask(endpoint)).body["succeeded"] == 1


async def test_the_next_tick_starts_after_its_request(jobs: Client, gate: Gate) -> None:
    """What is enqueued before the request is seen by its tick, though another one ran at that time."""
    endpoint = TickEndpoint(jobs)
    await gate.handler.enqueue()
    first = asking(endpoint)
    await gate.until_entered()
    await gate.handler.enqueue()
    second = asking(endpoint)
    await turns()
    gate.open.set()
    assert ((await first).body["claimed"], (await second).body["claimed"]) == (1, 1)


async def test_a_failed_tick_does_not_block_the_next(jobs: Client, gate: Gate, monkeypatch: Any) -> None:
    endpoint = TickEndpoint(jobs)
    await gate.handler.enqueue()
    real: Callable[..., Awaitable[Any]] = jobs.store.exchange
    begun, fail = asyncio.Event(), asyncio.Event()

    async def exchange(*args: Any) -> Any:
        monkeypatch.setattr(jobs.store, "exchange", real)
        begun.set()
        await fail.wait()
        raise jobmill.StoreUnavailable("gone fishing")

    monkeypatch.setattr(jobs.store, "exchange", exchange)
    first = asking(endpoint)
    await begun.wait()
    second = asking(endpoint)
    gate.open.set()
    fail.set()
    assert ((await first).status, (await second).status) == (500, 200)
    assert (await second).body["succeeded"] == 1


# ---------------------------------------------------------------------------------------------------- disconnects


async def test_a_tick_continues_when_its_request_is_cancelled(jobs: Client, gate: Gate) -> None:
    """As some servers do when the client disconnects."""
    endpoint = TickEndpoint(jobs)
    enqueued = await gate.handler.enqueue()
    request = asking(endpoint)
    await gate.until_entered()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    waiting = asking(endpoint)
    await turns()
    assert await state(enqueued) == ("running", 0, 0)
    gate.open.set()
    assert (await waiting).body["claimed"] == 0
    assert await state(enqueued) == ("succeeded", 0, 0)


async def test_a_cancelled_request_does_not_cancel_the_tick_of_others(jobs: Client, gate: Gate) -> None:
    endpoint = TickEndpoint(jobs, limit=1)
    await jobs.enqueue_many([gate.handler.draft() for _ in range(2)])
    first = asking(endpoint)
    await gate.until_entered()
    second, third = asking(endpoint), asking(endpoint)
    await turns()
    second.cancel()
    gate.open.set()
    assert ((await first).body["succeeded"], (await third).body["succeeded"]) == (1, 1)


async def test_a_response_to_a_disconnected_client(jobs: Client, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """As other servers do: sending to who is gone raises OSError."""
    enqueued = await gate.handler.enqueue()
    gate.open.set()

    async def send(_: Any) -> None:
        raise BrokenPipeError

    await TickEndpoint(jobs)(scope(), receiving(*body(b"")), send)
    assert await state(enqueued) == ("succeeded", 0, 0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# ---------------------------------------------------------------------------------------------------- life


class Server:
    """The part of a server that sends lifespan events."""

    def __init__(self, endpoint: TickEndpoint) -> None:
        self._told: asyncio.Queue[Any] = asyncio.Queue()
        self._heard: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(self._run(endpoint))

    async def _run(self, endpoint: TickEndpoint) -> None:
        await endpoint({"type": "lifespan"}, self._told.get, self._heard.put)

    async def tell(self, what: str) -> Any:
        await self._told.put({"type": f"lifespan.{what}"})
        return await asyncio.wait_for(self._heard.get(), 10)


async def test_the_lifespan_opens_and_closes_the_client(jobs: Client) -> None:
    endpoint = TickEndpoint(jobs)
    opened = [jobs._bound.is_open]
    for _ in range(2):  # a server may be started again with the same app
        server = Server(endpoint)
        assert await server.tell("startup") == {"type": "lifespan.startup.complete"}
        opened.append(jobs._bound.is_open)
        assert (await ask(endpoint)).status == 200
        assert await server.tell("shutdown") == {"type": "lifespan.shutdown.complete"}
        await server.task
        opened.append(jobs._bound.is_open)
        assert (await ask(endpoint)).status == 503
    assert opened == [False, True, False, True, False]


async def test_without_a_lifespan_the_first_request_opens_the_client(jobs: Client) -> None:
    assert not jobs._bound.is_open
    assert (await ask(TickEndpoint(jobs))).status == 200


@pytest.mark.stores("sqlite")
async def test_a_failed_startup_reports_the_error(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "jobs.db"
    file.write_text("no database" * 500)
    server = Server(TickEndpoint(jobmill.connect(f"sqlite:///{file}")))
    heard = await server.tell("startup")
    assert heard["type"] == "lifespan.startup.failed"
    assert str(file) in heard["message"]
    await server.task
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_the_shutdown_waits_for_the_tick_and_starts_no_other(jobs: Client, gate: Gate) -> None:
    endpoint = TickEndpoint(jobs, limit=1)
    server = Server(endpoint)
    await server.tell("startup")
    done, left = await jobs.enqueue_many([gate.handler.draft() for _ in range(2)])
    running = asking(endpoint)
    await gate.until_entered()
    waiting = asking(endpoint)
    await turns()
    ending = asyncio.create_task(server.tell("shutdown"))
    await turns()
    late = asking(endpoint)
    await turns()
    assert not ending.done()
    gate.open.set()
    assert (await running).body["succeeded"] == 1
    for other in (await waiting, await late):
        assert (other.status, other.error) == (503, "stopping; try again later")
    assert await ending == {"type": "lifespan.shutdown.complete"}
    assert (await state(done), await state(left)) == (("succeeded", 0, 0), ("waiting", 0, 0))


async def test_a_tick_that_takes_too_long_at_shutdown_releases_its_jobs(jobs: Client, gate: Gate) -> None:
    endpoint = TickEndpoint(jobs, shutdown_timeout="10ms")
    enqueued = await gate.handler.enqueue()
    running = asking(endpoint)
    await gate.until_entered()
    waiting = asking(endpoint)
    await turns()
    await asyncio.wait_for(endpoint.stop(), 10)
    assert ((await running).status, (await waiting).status) == (503, 503)
    assert await state(enqueued) == ("waiting", 0, 0)


async def test_stopping_again_can_shorten_the_timeout(jobs: Client, gate: Gate) -> None:
    endpoint = TickEndpoint(jobs)
    enqueued = await gate.handler.enqueue()
    running = asking(endpoint)
    await gate.until_entered()
    stopping = asyncio.create_task(endpoint.stop("10m"))
    await turns()
    await asyncio.wait_for(endpoint.stop(timeout=0), 10)
    await asyncio.wait_for(stopping, 10)
    assert (await running).status == 503
    assert await state(enqueued) == ("waiting", 0, 0)


async def test_stopping_does_not_wait_for_a_tick_that_was_cancelled_before_it_started(jobs: Client) -> None:
    endpoint = TickEndpoint(jobs)
    request = asking(endpoint)
    async with asyncio.timeout(10):
        while endpoint._next is None:
            await turns(1)  # no longer than that: the tick would begin
    endpoint._next.cancel()
    assert (await request).status == 500
    assert (await ask(endpoint)).status == 200


async def test_stopping_without_a_tick(jobs: Client) -> None:
    endpoint = TickEndpoint(jobs)
    await endpoint.stop()
    await endpoint.stop(timeout=0)
    assert (await ask(endpoint)).status == 503


async def test_a_cancelled_tick_is_a_failed_tick(jobs: Client, gate: Gate) -> None:
    """As `asyncio.run` does with all tasks at its end."""
    endpoint = TickEndpoint(jobs)
    enqueued = await gate.handler.enqueue()
    running = asking(endpoint)
    await gate.until_entered()
    assert endpoint._running is not None
    endpoint._running.cancel()
    heard = await running
    assert (heard.status, heard.error) == (500, "Failed to run jobs tick")
    assert await state(enqueued) == ("waiting", 0, 0)
