"""The example shops of FastAPI, Flask and Litestar, with real servers: orders, rollbacks, killed workers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.examples.printed import curls
from tests.frameworks.shops import SERVERS, Shop
from tests.helpers import until

#: For processes that start on a busy machine.
PATIENCE_S = 60.0


@pytest.fixture(params=list(SERVERS))
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(request.param, tmp_path)
    yield shop
    await asyncio.to_thread(shop.end)


async def up(shop: Shop) -> None:
    await until(lambda: asyncio.to_thread(shop.is_up), PATIENCE_S)


async def shipped(shop: Shop, order: int) -> None:
    async def is_shipped() -> bool:
        return await asyncio.to_thread(shop.state, order) == "shipped"

    await until(is_shipped, PATIENCE_S)


async def ended(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 60)


@pytest.mark.slow
async def test_an_order_is_shipped_and_one_that_is_rolled_back_has_no_job(shop: Shop) -> None:
    """Where the framework can, the worker runs inside the server."""
    has_worker = shop.framework != "flask"
    server = shop.serve(**({"SHOP_WORKER": "1"} if has_worker else {}))
    worker = None if has_worker else shop.work()
    await up(shop)
    made, refused = await asyncio.to_thread(shop.ask_as_printed)
    assert made.status == 201, made.text
    assert (refused.status, "sold out" in refused.text) == (409, True)
    await shipped(shop, made.json["order"])
    shown = await asyncio.to_thread(shop.ask, *curls(f"{shop.framework}_shop.py")[-1])
    assert shown.json == {"item": "tea", "state": "shipped"}
    async with shop.jobs() as jobs:
        names = sorted([job.name async for job in jobs.find_all()])
        assert names == (["ship"] if has_worker else ["print_label", "ship"])
        if not has_worker:
            label = await jobs.result(made.json["label"], timeout=PATIENCE_S)
            assert label == f"order {made.json['order']}: tea", "isolated handlers have the application's context too"
    page = await asyncio.to_thread(shop.ask, "GET", f"/jobs/jobs/{made.json['job']}")
    assert (page.status, 'href="/jobs/queues"' in page.text) == (200, True)
    if worker is not None:
        assert await ended(worker) == 0
    await ended(server)
    assert "Traceback" not in shop.log.read_text()


@pytest.mark.extended
async def test_a_killed_worker_loses_no_job(shop: Shop) -> None:
    shop.serve()
    await up(shop)
    slow = shop.work("--lease", "1s", SHOP_PACKING_S="3600")
    made = (await asyncio.to_thread(shop.ask, "POST", "/orders", {"item": "tea"})).json
    async with shop.jobs() as jobs:

        async def is_running() -> bool:
            return (await jobs.get(made["job"])).state == "running"

        await until(is_running, PATIENCE_S)
        slow.kill()
        assert await asyncio.to_thread(shop.state, made["order"]) == "new"
        shop.work("--processes", "2")
        await shipped(shop, made["order"])
        await jobs.result(made["job"], timeout=PATIENCE_S)
        assert (await jobs.get(made["job"])).crashes == 1


@pytest.mark.extended
async def test_a_worker_inside_a_server_that_is_killed_loses_no_job(tmp_path: Path) -> None:
    shop = Shop("fastapi", tmp_path)
    try:
        server = shop.serve(SHOP_WORKER="1", SHOP_PACKING_S="3600")
        await up(shop)
        made = (await asyncio.to_thread(shop.ask, "POST", "/orders", {"item": "tea"})).json
        async with shop.jobs() as jobs:

            async def is_running() -> bool:
                return (await jobs.get(made["job"])).state == "running"

            await until(is_running, PATIENCE_S)
            server.kill()
            await asyncio.to_thread(server.wait)
            shop.serve(SHOP_WORKER="1")
            await up_again(shop)
            await shipped(shop, made["order"])
    finally:
        await asyncio.to_thread(shop.end)


async def up_again(shop: Shop) -> None:
    def answers() -> bool:
        try:
            return shop.ask("GET", "/orders/1").status == 200
        except OSError:
            return False

    await until(lambda: asyncio.to_thread(answers), PATIENCE_S)


@pytest.mark.extended
@pytest.mark.parametrize("shop", ["flask", "litestar"], indirect=True)
async def test_the_command_line_of_the_framework_has_the_commands(shop: Shop) -> None:
    shop.serve()
    await up(shop)
    made = (await asyncio.to_thread(shop.ask, "POST", "/orders", {"item": "tea"})).json
    assert made["job"] in await asyncio.to_thread(shop.run, "jobs", "list", "--json")
    assert "--processes" in await asyncio.to_thread(shop.run, "worker", "--help")


@pytest.mark.extended
async def test_the_grace_of_uvicorn_is_for_requests_and_that_of_the_worker_for_jobs(tmp_path: Path) -> None:
    """`timeout_graceful_shutdown` does not cut a job that still runs: uvicorn ends the lifespan without a limit."""
    shop = Shop("fastapi", tmp_path)
    try:
        server = shop.serve("--timeout-graceful-shutdown", "1", SHOP_WORKER="1", SHOP_PACKING_S="3")
        await up(shop)
        made = (await asyncio.to_thread(shop.ask, "POST", "/orders", {"item": "tea"})).json
        async with shop.jobs() as jobs:

            async def is_running() -> bool:
                return (await jobs.get(made["job"])).state == "running"

            await until(is_running, PATIENCE_S)
            await ended(server)
            job = await jobs.get(made["job"])
            assert (job.state, job.claims) == ("succeeded", 1), shop.log.read_text()
    finally:
        await asyncio.to_thread(shop.end)
