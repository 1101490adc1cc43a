"""Everything at once and at random: in the end every job was done, under the last claim that it had."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

import jobmill
from jobmill.stores.redis import scripts
from tests.e2e.conftest import Place
from tests.e2e.redis_storms import stands_twice
from tests.e2e.storms import Storm
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.stores("redis")]

FOR_S = 20.0


class Chaos:
    """Faults, one after the other."""

    def __init__(self, place: Place, proxy: Proxy, server: RedisServer, chance: random.Random) -> None:
        self._place = place
        self._proxy = proxy
        self._server = server
        self._chance = chance
        self.done: list[str] = []

    async def reign(self, seconds: float) -> None:
        """Until the time is over; afterwards all is as it should be."""
        faults = [self.kill, self.kill_clients, self.cut, self.stall, self.refuse, self.drop, self.half_open]
        faults += [self.forget_scripts, self.use_up, self.restart]
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

    async def kill_clients(self) -> None:
        """An administrator ends all connections."""
        with self._server.client() as administrator:
            administrator.client_kill_filter(_type="normal", skipme=True)

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
        """Something is done and nobody hears of it."""
        sha = self._chance.choice([scripts.EXCHANGE, scripts.ENQUEUE, scripts.EXTEND, scripts.RECOVER]).sha.encode()
        self._proxy.drop_answer(lambda command: sha in command)

    async def half_open(self) -> None:
        """A router forgets all connections, until it is restarted."""
        self._proxy.half_open()
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))
        self._proxy.cut()

    async def forget_scripts(self) -> None:
        """The server knows no script any more."""
        self._server.ask("SCRIPT", "FLUSH")

    async def use_up(self) -> None:
        """The server has no memory left."""
        self._server.ask("CONFIG", "SET", "maxmemory", "1")
        await asyncio.sleep(self._chance.uniform(0.1, 1.5))
        self._server.ask("CONFIG", "SET", "maxmemory", "0")

    async def restart(self) -> None:
        """The server dies; what it acknowledged is on disk."""
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._chance.uniform(0.1, 0.5))
        self._server.start()


async def test_every_job_ends_once_whatever_happens(tmp_path: Path, own_redis: RedisServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    async with Proxy(own_redis.port) as proxy:
        place = Place(tmp_path, proxy.url(own_redis.url()))
        chaos = Chaos(place, proxy, own_redis, random.Random(seed))
        try:
            async with jobmill.connect(place.url) as jobs:
                made = Storm(jobs, place)
                for _ in range(2):
                    place.worker("--concurrency", "20")
                await made.was_said("concurrency 20")
                async with made.raging():
                    await chaos.reign(FOR_S)
                    await chaos.kill()
                    await made.resumes()
                await made.all_is_well()
            assert await stands_twice(place.url) == []
            assert "Traceback" not in "".join(map(place.said, place.processes))
            assert made.claimed_again
            print(len(made.acknowledged), made.claimed_again, len(made.refused), chaos.done)
        finally:
            place.end()
