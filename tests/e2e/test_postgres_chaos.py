"""Everything at once and at random: in the end every job was done, under the last claim that it had."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobmill
from jobmill.stores.postgres import PostgresStore
from tests.e2e.conftest import Place
from tests.e2e.storms import Storm
from tests.kit.places import port_of
from tests.kit.postgres import connected
from tests.kit.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.stores("postgres")]

FOR_S = 20.0


class Chaos:
    """Faults, one after the other."""

    def __init__(self, place: Place, proxy: Proxy, url: str, chance: random.Random) -> None:
        self._place = place
        self._proxy = proxy
        self._url = url
        self._chance = chance
        self.done: list[str] = []

    async def reign(self, seconds: float) -> None:
        """Until the time is over; afterwards all is as it should be."""
        faults = [self.kill, self.terminate, self.cut, self.stall, self.refuse, self.drop, self.half_open]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault = self._chance.choice(faults)
            self.done.append(fault.__name__)
            await fault()
            await asyncio.sleep(self._chance.uniform(0, 0.6))
        self._proxy.drop_answer(lambda _: False)

    async def kill(self) -> None:
        """A worker dies, and another takes its place; so do others for those that found nobody when they started."""
        alive = [process for process in self._place.processes if process.poll() is None]
        if alive:
            self._chance.choice(alive).kill()
        for _ in range(max(1, 3 - len(alive))):
            self._place.worker("--concurrency", "20")

    async def terminate(self) -> None:
        """An administrator ends all connections."""
        async with connected(self._url) as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )

    async def cut(self) -> None:
        """The network resets all connections."""
        self._proxy.cut()

    async def stall(self) -> None:
        """The network holds its breath, for longer than the lease now and then."""
        self._proxy.stall()
        await asyncio.sleep(self._chance.uniform(0.1, 1.5))
        self._proxy.go_on()

    async def refuse(self) -> None:
        """The server cannot be reached."""
        self._proxy.refuse()
        self._proxy.cut()
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        self._proxy.accept()

    async def drop(self) -> None:
        """Something is committed and nobody hears of it."""
        word = self._chance.choice([b".exchange", b".enqueue", b".extend"])
        self._proxy.drop_answer(lambda statement: word in statement.replace(b"COMMITTED", b""))

    async def half_open(self) -> None:
        """A router forgets all connections, until it is restarted."""
        self._proxy.half_open()
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        self._proxy.cut()


@pytest.fixture
async def proxy(local_postgres_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_postgres_url)) as proxy:
        yield proxy


async def test_every_job_ends_once_whatever_happens(tmp_path: Path, proxy: Proxy, local_postgres_url: str) -> None:
    store = PostgresStore(local_postgres_url)
    await store.migrate()
    await store.close()
    place = Place(tmp_path, proxy.url(local_postgres_url))
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    chaos = Chaos(place, proxy, local_postgres_url, random.Random(seed))
    try:
        async with jobmill.connect(place.url) as jobs:
            made = Storm(jobs, place)
            for _ in range(2):
                place.worker("--concurrency", "20")
            await made.was_said("20 slots")
            async with made.raging():
                await chaos.reign(FOR_S)
                await chaos.kill()
                await made.resumes()
            await made.all_is_well()
        assert "Traceback" not in "".join(map(place.said, place.processes))
        assert made.claimed_again
        print(len(made.acknowledged), made.claimed_again, len(made.refused), chaos.done)
    finally:
        place.end()
