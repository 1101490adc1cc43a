"""Our crontab in a process of its own, driven by lines of JSON as mongodb_cron.mjs is: `peer.py URL COLLECTION`."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec
from pymongo import AsyncMongoClient

from jobmill.crontab import Crontab, CrontabJob, MongoCrontab


def tell(**what: Any) -> None:
    """One line, at once: a process that is killed has told what it did."""
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


async def on_document(job: CrontabJob) -> None:
    """As in Node."""
    about = {"job": job.id, "slot": round(job.sleep_until.timestamp() * 1_000)}
    tell(event="run", **about, at=int(time.time() * 1_000))
    await asyncio.sleep(job.data.get("ours_ms", job.data.get("ms", 0)) / 1_000)
    tell(event="end", **about, at=int(time.time() * 1_000))


def on_error(error: BaseException, job: CrontabJob | None) -> None:
    """Anything, a lost lock too."""
    tell(event="error", text=f"{type(error).__name__}: {error}", job=job and job.id)


async def serve(url: str, name: str) -> None:
    """Until stdin ends."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        collection = client.get_default_database()[name]
        crontab: Crontab | None = None
        while line := await lines.readline():
            command = msgspec.json.decode(line)
            if command["op"] == "start":
                store = MongoCrontab(collection, **command["store"])
                crontab = Crontab(store, on_document=on_document, on_error=on_error, **command["config"])
                await store.migrate()
                await crontab.start()
            elif crontab is not None:
                await crontab.stop()
            tell(id=command["id"], value=None)
        if crontab is not None:
            await crontab.stop(timeout=0)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
