"""Litestar's worker processes beside the server: they end with it, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobmill
from jobmill import Client, InvalidValue
from jobmill.frameworks.litestar import JobmillPlugin
from tests.frameworks.shops import Shop
from tests.frameworks.test_shops import PATIENCE_S, shipped, up
from tests.helpers import until
from tests.kit.processes import Member, family, is_gone


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop("litestar", tmp_path)
    yield shop
    await asyncio.to_thread(shop.end)


def beside(pid: int) -> list[Member]:
    """The processes below the server: a supervisor and its workers."""
    return family(pid)[1:]


async def serving(shop: Shop, *arguments: str, **environment: str) -> tuple[int, list[Member]]:
    """Start the server with two worker processes, and run a job; its process and those beside it."""
    server = shop.serve(*arguments, SHOP_PROCESSES="2", **environment)
    await up(shop)
    made = await asyncio.to_thread(shop.ask, "POST", "/orders", {"item": "tea"})
    await shipped(shop, made.json["order"])
    async with shop.jobs() as jobs:
        await until(lambda: is_count_of_workers(jobs, 2), PATIENCE_S)
    return server.pid, beside(server.pid)


def is_jobmill(member: Member) -> bool:
    return b"jobmill" in Path(f"/proc/{member.pid}/cmdline").read_bytes()


async def is_count_of_workers(jobs: Client, count: int) -> bool:
    return len(await jobs.workers()) == count


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_they_end_before_the_server_when_it_is_stopped(shop: Shop, number: signal.Signals) -> None:
    pid, members = await serving(shop)
    assert len(members) == 3, "a supervisor and two workers"
    os.kill(pid, number)
    code = await asyncio.to_thread(shop.processes[0].wait, 60)
    assert [member for member in members if not is_gone(member)] == [], "the server waits for them"
    assert code in (0, -number), shop.log.read_text()
    async with shop.jobs() as jobs:
        assert await jobs.workers() == [], "they have said goodbye"


@pytest.mark.extended
async def test_they_end_when_the_server_is_killed(shop: Shop) -> None:
    pid, members = await serving(shop)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: all(map(is_gone, members)), PATIENCE_S)
    async with shop.jobs() as jobs:
        assert await jobs.workers() == [], "they have said goodbye"


@pytest.mark.extended
async def test_a_server_in_another_process(shop: Shop) -> None:
    """With --wc, uvicorn is a child of the command. What ends the command ends the workers."""
    pid, members = await serving(shop, "--wc", "2")
    workers = [member for member in members if is_jobmill(member)]
    assert len(workers) == 3, "a supervisor and two workers"
    os.kill(pid, signal.SIGKILL)
    await until(lambda: all(map(is_gone, workers)), PATIENCE_S)
    for member in members:  # Litestar leaves uvicorn behind
        if not is_gone(member):
            os.kill(member.pid, signal.SIGKILL)


def test_they_have_options_of_workers() -> None:
    jobs = jobmill.connect("memory://")
    JobmillPlugin(jobs, processes=2, concurrency=3, queues="mail", lease=2.5)
    with pytest.raises(InvalidValue, match="processes: expected 0 with worker=True"):
        JobmillPlugin(jobs, processes=2, worker=True)
    with pytest.raises(InvalidValue, match="concurrency"):
        JobmillPlugin(jobs, processes=2, concurrency=0)
    with pytest.raises(InvalidValue, match="name: expected no name"):
        JobmillPlugin(jobs, processes=2, name="one")
    with pytest.raises(InvalidValue, match="worker: expected True"):
        JobmillPlugin(jobs, concurrency=3)


def test_the_options_of_workers_reach_their_command_line() -> None:
    from jobmill.frameworks.beside import settings

    given = settings("shop:jobs", 2, {"queues": "mail", "lease": 2.5, "wait_for_store": True, "health": 8080})
    assert given.argv == ["worker", "shop:jobs", "--queue=mail", "--lease=2500ms"]
    assert (given.processes, given.health, given.shutdown_timeout) == (2, 8080, 30)
    assert settings("shop:jobs", 1, {"wait_for_store": False}).argv == ["worker", "shop:jobs", "--no-wait"]
