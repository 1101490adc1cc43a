"""`jobs.app_lifespan()`: what a web application opens and closes. The example shops use it with real servers."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context, InvalidValue
from tests.helpers import FaultyStore


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


async def test_the_worker_is_inside_of_the_own_lifespan_and_of_the_client(jobs: Client) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, str]]:
        order.append(f"{app} opens")
        await jobs.enqueue("work")
        yield {"own": "state"}
        order.append(f"{app} closes")

    @jobs.lifespan
    async def state() -> AsyncIterator[str]:
        order.append("state opens")
        yield "value"
        order.append("state closes")

    @jobs.handler
    async def work(context: Context[str]) -> str:
        order.append("runs")
        return context.state

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with jobs.app_lifespan(worker=True, inner=own, concurrency=2)("app") as yielded:
        assert yielded == {"own": "state"}
        assert await (await work.enqueue()).result(timeout=10) == "value"
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert order[:2] == ["app opens", "state opens"]
    assert order[-2:] == ["state closes", "app closes"]
    assert order.count("runs") == 2


async def test_without_a_worker_it_only_opens_and_closes_the_client() -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)

    @jobs.handler
    async def work() -> None: ...

    async with jobs.app_lifespan()(None) as state:
        assert state is None
        await work.enqueue()
    assert "exchange" not in store.calls


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"concurrency": 5}, "worker"),
        ({"worker": True, "concurrency": 0}, "concurrency"),
        ({"worker": True, "color": "red"}, "color"),
        ({"worker": True, "max_jobs": 5}, "max_jobs"),
    ],
)
def test_wrong_options_are_refused_when_the_application_is_defined(
    jobs: Client, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        jobs.app_lifespan(**given)
