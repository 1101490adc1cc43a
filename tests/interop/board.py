"""bull-board in a process of its own, and what its page does by its own requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

from tests.kit.node import NodeProcess, Packages


class Board:
    """bull-board of some queues; `queue` is the one whose buttons are pressed."""

    def __init__(self, port: int, queue: str) -> None:
        self.address = f"http://127.0.0.1:{port}/api"
        self.name = queue

    async def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        """The answer to a request, which must be fine."""
        data = json.dumps(body or {}).encode() if method != "GET" else None
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.address}{path}", data, headers, method=method)

        def send() -> bytes:
            with urllib.request.urlopen(request, timeout=20) as answer:
                whole: bytes = answer.read()
                return whole

        answer = await asyncio.to_thread(send)
        return json.loads(answer) if answer else None

    async def press(self, button: str, id: str | None = None) -> None:
        """A button of the queue, or of one of its jobs."""
        job = "" if id is None else f"{id}/"
        await self.ask(f"/queues/{self.name}/{job}{button}", "PUT")

    async def queue(self, status: str = "latest") -> dict[str, Any]:
        """The queue, with a page of its jobs."""
        answer = await self.ask(f"/queues?activeQueue={self.name}&status={status}&page=1&jobsPerPage=20")
        (queue,) = answer["queues"]
        return dict(queue)

    async def counts(self) -> dict[str, int]:
        """How many jobs are where, without zeros."""
        return {status: count for status, count in (await self.queue())["counts"].items() if count}


@contextlib.asynccontextmanager
async def board_at(packages: Packages, url: str, prefix: str, *queues: str) -> AsyncIterator[Board]:
    """It ends with the block."""
    async with NodeProcess(packages, "board.mjs", url, prefix, *queues) as process:
        yield Board((await process.event("serves"))["port"], queues[0])
