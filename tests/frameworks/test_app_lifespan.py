"""`jobs.app_lifespan()`: what a web application opens and closes. The example shops use it with real servers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context, InvalidValue
from tests.helpers import FaultyStore, until
from tests.kit.places import free_port
from tests.kit.processes import launched

ROOT = Path(__file__).parents[2]


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


async def test_the_worker_stops_when_the_server_begins_to_stop(jobs: Client) -> None:
    """Before the end of the lifespan, for which a server waits until its requests have ended."""
    stops = False

    @jobs.handler
    async def work() -> None: ...

    async with jobs.app_lifespan(worker=True, is_stopping=lambda: stops)(None):
        await (await work.enqueue()).result(timeout=10)
        stops = True

        async def is_gone() -> bool:
            return not await jobs.workers()

        await until(is_gone)
        late = await work.enqueue()
    async with jobs:
        assert (await jobs.get(late.id)).state == "waiting"


def test_a_loop_that_ends_while_the_worker_stops_releases_its_jobs(
    jobs: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stops = False
    caplog.set_level(logging.INFO, "jobmill")

    @jobs.handler
    async def never_ends() -> None:
        await asyncio.Event().wait()

    async def serve() -> None:
        async with jobs.app_lifespan(worker=True, is_stopping=lambda: stops)(None):
            await asyncio.Event().wait()

    async def run() -> str:
        nonlocal stops
        serving = asyncio.create_task(serve())
        enqueued = await never_ends.enqueue()

        async def is_running() -> bool:
            return (await jobs.get(enqueued.id)).state == "running"

        await until(is_running)
        stops = True
        await until(lambda: ": stopping; 1 running job" in caplog.text)
        assert not serving.done()
        return enqueued.id

    id = asyncio.run(run())
    job = jobs.sync.get(id)
    jobs.sync.close()
    assert (job.state, job.crashes, job.claims) == ("waiting", 0, 1)


async def test_a_function_that_raises_does_not_end_the_worker(jobs: Client, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise KeyError("no server")

    @jobs.handler
    async def work() -> int:
        return 7

    async with jobs.app_lifespan(worker=True, is_stopping=broken)(None):
        await until(lambda: "cannot ask whether its server stops" in caplog.text)
        assert await (await work.enqueue()).result(timeout=10) == 7


def uvicorn(url: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uvicorn", "tests.frameworks.held_app:app", "--port", str(port)]
    return subprocess.Popen(
        launched(None, signal.SIGKILL, command),
        cwd=ROOT,
        env={**os.environ, "JOBMILL_URL": url},
        stderr=subprocess.DEVNULL,
    )


class Held:
    """uvicorn with a worker inside, and a request that lasts until `end`."""

    def __init__(self, folder: Path) -> None:
        self.url, self.port = f"sqlite:///{folder / 'jobs.db'}", free_port()

    async def __aenter__(self) -> Held:
        self.server = uvicorn(self.url, self.port)
        self.jobs = await jobmill.connect(self.url).__aenter__()
        await until(self.workers, 60)
        self._reader, self._writer = await until(self._connected, 60)
        self._writer.write(b"POST /held HTTP/1.1\r\nhost: shop\r\ncontent-length: 2\r\n\r\n1")
        (first,) = await until(self.found, 60)
        await self.jobs.result(first.id, timeout=60)  # the request runs, and so does the worker
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self.jobs.close()
        self.server.kill()
        await asyncio.to_thread(self.server.wait)

    async def _connected(self) -> Any:
        try:
            return await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return None

    async def workers(self) -> int:
        return len(await self.jobs.workers())

    async def found(self) -> list[jobmill.Job]:
        return (await self.jobs.find()).jobs

    async def end(self) -> bytes:
        self._writer.write(b"2")
        return await asyncio.wait_for(self._reader.readline(), 60)

    async def stopped(self) -> None:
        await asyncio.to_thread(self.server.wait, 60)


@pytest.mark.slow
async def test_a_worker_inside_uvicorn_claims_nothing_after_the_signal(tmp_path: Path) -> None:
    async with Held(tmp_path) as held:
        held.server.send_signal(signal.SIGTERM)

        async def is_gone() -> bool:
            return not await held.workers()

        await until(is_gone, 60)
        assert (await held.end()).startswith(b"HTTP/1.1 200")
        await held.stopped()
        assert sorted(job.state for job in await held.found()) == ["succeeded", "waiting"]


@pytest.mark.extended
async def test_a_second_ctrl_c_releases_the_jobs_of_a_worker_that_stops(tmp_path: Path) -> None:
    """uvicorn then ends without the end of the lifespan: its loop cancels everything."""
    async with Held(tmp_path) as held:
        enqueued = await held.jobs.enqueue("never_ends")

        async def is_running() -> bool:
            return (await held.jobs.get(enqueued.id)).state == "running"

        async def is_stopping() -> bool:
            return all(card.stopping for card in await held.jobs.workers())

        await until(is_running, 60)
        held.server.send_signal(signal.SIGINT)
        await until(is_stopping, 60)
        held.server.send_signal(signal.SIGINT)
        await held.stopped()
        job = await held.jobs.get(enqueued.id)
        assert (job.state, job.crashes, job.claims) == ("waiting", 0, 1)


async def test_a_setting_may_switch_the_worker_off(jobs: Client) -> None:
    async with jobs.app_lifespan(worker=False, concurrency=5, is_stopping=bool)(None):
        assert await jobs.workers() == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"concurrency": 5}, "worker"),
        ({"worker": False, "concurrency": 0}, "concurrency"),
        ({"is_stopping": bool}, "worker"),
        ({"worker": True, "is_stopping": True}, "is_stopping"),
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
