"""A client with a handler that does nothing but be counted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from jobmill.client.client import Client, connect
from jobmill.handlers.handler import Handler

#: How many jobs one call hands in while a file is filled.
AT_ONCE = 10_000


class Noops:
    """Counts the runs of `noop`; `enough` is set after the run that was asked for."""

    def __init__(self, url: str, enough_at: int = 0) -> None:
        self.client: Client = connect(url)
        self.ran = 0
        self.last = 0.0
        self.enough = asyncio.Event()

        async def noop() -> None:
            self.ran += 1
            if self.ran == enough_at:
                self.last = time.perf_counter()
                self.enough.set()

        self.noop: Handler[[], object] = self.client.handler()(noop)

    async def wait(self, seconds: float) -> None:
        """Until enough have run, or the time is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.enough.wait(), seconds)

    async def fill(self, jobs: int, delay: str | None = None) -> None:
        """Enqueue so many, many in a call."""
        one = self.noop.draft() if delay is None else self.noop.options(delay=delay).draft()
        for first in range(0, jobs, AT_ONCE):
            await self.client.enqueue_many([one] * min(AT_ONCE, jobs - first))


@contextlib.asynccontextmanager
async def noops(url: str, enough_at: int = 0) -> AsyncIterator[Noops]:
    """Opened, and closed at the end."""
    made = Noops(url, enough_at)
    async with made.client:
        yield made
