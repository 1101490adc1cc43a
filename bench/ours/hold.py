"""A worker that is going to be killed, and the job that it runs then."""

from __future__ import annotations

from bench.child import ready
from bench.holding import forever, tell
from jobmill.client.client import connect
from jobmill.worker.worker import Worker


async def enqueueing(url: str) -> None:
    """One job for the worker."""
    async with connect(url) as client:
        await client.enqueue("hold")


async def working(url: str, slots: int, path: str) -> None:
    """Says that it is ready, and works until it is killed."""
    client = connect(url)

    @client.handler()
    async def hold() -> None:
        tell(path)
        await forever()

    async with client, Worker(client, concurrency=slots):
        ready()
        await forever()
