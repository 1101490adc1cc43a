"""A Monque process for tests, driven by lines of JSON: it enqueues and works, and may be killed at any moment.

    python -m tests.interop.monque.peer URL COLLECTION GENERATION

A command is a line {id, op, ...}; its answer {id, value} or {id, error}. Events are `run` and `end` of each job, `lost`
when its claim was, and `hazard` for a document that a Node process would stumble over, each with what is wrong with it.
Whatever ends stdin ends it, without another word.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from tests.interop.monque.monque import OVERFLOWN_MS, WAKING, Document, Generation, Monque, hazards, timer_ms

#: After a change it waits for more of them, each time anew.
DEBOUNCE_S = 0.1
SHUTDOWN_MS = 30_000.0


def tell(told: dict[str, Any]) -> None:
    """One line, in one piece."""
    sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
    sys.stdout.buffer.flush()


class Peer:
    """The scheduler of one process, and its workers."""

    def __init__(self, monque: Monque) -> None:
        self.monque = monque
        self.poll_s = 1.0
        self.workers: dict[str, int] = {}
        self.running: dict[asyncio.Task[None], Document] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self.polls = 0

    # ------------------------------------------------------------------------------------------------ life

    async def initialize(
        self,
        lock_timeout_ms: int | None = None,
        heartbeat_ms: int | None = None,
        lease_ms: int | None = None,
        max_retries: int | None = None,
        base_ms: int | None = None,
        poll_ms: int | None = None,
        recover: bool = True,
    ) -> dict[str, Any]:
        """Make the indexes and recover what is stale: what it made, and how many it found."""
        monque = self.monque
        if lock_timeout_ms is not None:
            monque.lock_timeout = timedelta(milliseconds=lock_timeout_ms)
        monque.heartbeat_ms = heartbeat_ms or monque.heartbeat_ms
        monque.lease_ms = lease_ms
        monque.max_retries = max_retries or monque.max_retries
        monque.base_ms = base_ms or monque.base_ms
        self.poll_s = poll_ms / 1_000 if poll_ms else self.poll_s
        made = await monque.create_indexes()
        return {"made": made, "recovered": await monque.recover_stale() if recover else 0}

    async def start(self, concurrency: int = 5, names: list[str] | None = None) -> None:
        """Work jobs of these names."""
        self.workers = dict.fromkeys(names or ["work"], concurrency)
        watching = asyncio.Event()
        self._loops = [asyncio.create_task(one) for one in (self._poll(), self._beat(), self._watch(watching))]
        await watching.wait()

    async def stop(self, timeout_ms: float = SHUTDOWN_MS) -> int:
        """No more claims; wait for running jobs and release what is left: how many."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self.running:
            await asyncio.wait(self.running, timeout=timeout_ms / 1_000)
        left = list(self.running.items())
        for task, job in left:
            task.cancel()
            await self.monque.release(job)
        return len(left)

    # ------------------------------------------------------------------------------------------------ loops

    async def _poll(self) -> None:
        while True:
            self._woken.clear()
            self.polls += 1
            try:
                for name, room in self.workers.items():
                    await self._fill(name, room)
            except PyMongoError as error:
                tell({"event": "error", "what": str(error)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.poll_s):
                    await self._woken.wait()

    async def _fill(self, name: str, room: int) -> None:
        while sum(job["name"] == name for job in self.running.values()) < room:
            job = await self.monque.claim(name)
            if job is None:
                return
            task = asyncio.create_task(self._run(job))
            self.running[task] = job
            task.add_done_callback(self._is_done)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        del self.running[task]
        if not task.cancelled() and task.exception() is not None:
            tell({"event": "error", "what": repr(task.exception())})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.monque.heartbeat_ms / 1_000)
            with contextlib.suppress(PyMongoError):
                if self.running:
                    await self.monque.beat(list(self.running.values()))

    async def _watch(self, watching: asyncio.Event) -> None:
        """Changes wake it, after a while without others; without a replica set only the poll does."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        try:
            async with await self.monque.collection.watch(WAKING, full_document="updateLookup") as stream:
                watching.set()
                async for change in stream:
                    if (job := change.get("fullDocument")) is not None:
                        self._check(job, change["operationType"])
                        if change["operationType"] == "insert" and (wait_ms := timer_ms(job)) > 0:
                            loop.call_later(wait_ms / 1_000, self._woken.set)
                            if wait_ms == OVERFLOWN_MS and "jobmill" in job:
                                what = f"no timer is as long as to {job['nextRunAt']}"
                                tell({"event": "hazard", "job": str(job["_id"]), "where": "insert", "what": what})
                    if timer is not None:
                        timer.cancel()
                    timer = loop.call_later(DEBOUNCE_S, self._woken.set)
        except PyMongoError as error:
            tell({"event": "error", "what": f"change stream: {error}"})
        finally:
            watching.set()

    # ------------------------------------------------------------------------------------------------ one job

    async def _run(self, job: Document) -> None:
        self._check(job, "claim")
        about = {"job": str(job["_id"]), "name": job["name"], "fails": job["failCount"]}
        tell({"event": "run", **about, "at": time.time() * 1_000, "pid": os.getpid()})
        data = job["data"] if isinstance(job.get("data"), dict) else {}
        await asyncio.sleep(data.get("peer_ms", data.get("ms", 0)) / 1_000)
        if data.get("fails", 0) > job["failCount"]:
            kept = await self.monque.fail(job, f"attempt {job['failCount'] + 1} is no good")
        else:
            kept = await self.monque.complete(job)
        tell({"event": "end" if kept else "lost", **about, "at": time.time() * 1_000})

    def _check(self, job: Document, where: str) -> None:
        for what in hazards(job):
            tell({"event": "hazard", "job": str(job["_id"]), "where": where, "what": what})


class Commands:
    """What a line may ask for, by its `op`."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.monque = peer.monque

    async def initialize(self, **about: Any) -> Any:
        """See Peer."""
        return await self.peer.initialize(**about)

    async def start(self, **about: Any) -> Any:
        """See Peer."""
        await self.peer.start(**about)

    async def stop(self, **about: Any) -> Any:
        """See Peer."""
        return await self.peer.stop(**about)

    async def enqueue(self, at_ms: float | None = None, **about: Any) -> Any:
        """The job's id."""
        return await self.monque.enqueue(self.monque.document(**about, run_at=_date(at_ms)))

    async def bulk(self, jobs: list[dict[str, Any]]) -> Any:
        """The jobs' ids."""
        dates = [_date(job.pop("at_ms", None)) for job in jobs]
        made = [self.monque.document(**job, run_at=at) for job, at in zip(jobs, dates, strict=True)]
        return await self.monque.enqueue_many(made)

    async def drip(self, name: str, count: int, every_ms: float) -> Any:
        """One job after the other: by their ids, when each was acknowledged."""
        told: dict[str, float] = {}
        for _ in range(count):
            id = await self.monque.enqueue(self.monque.document(name))
            told[id] = time.time() * 1_000
            await asyncio.sleep(every_ms / 1_000)
        return told

    async def cancel(self, job: str) -> Any:
        """Whether it was."""
        return await self.monque.cancel(bson.ObjectId(job))

    async def retry(self, job: str) -> Any:
        """Whether it is."""
        return await self.monque.retry(bson.ObjectId(job))

    async def reschedule(self, job: str, at_ms: float) -> Any:
        """Whether it was."""
        at = _date(at_ms)
        assert at is not None
        return await self.monque.reschedule(bson.ObjectId(job), at)

    async def delete(self, job: str) -> Any:
        """Whether it was there."""
        return await self.monque.delete(bson.ObjectId(job))

    async def polls(self) -> Any:
        """How often it looked for jobs."""
        return self.peer.polls

    async def check(self) -> Any:
        """What is wrong with any document, by its id."""
        found = {str(job["_id"]): hazards(job) async for job in self.monque.collection.find()}
        return {id: wrong for id, wrong in found.items() if wrong}

    async def answer(self, asked: dict[str, Any]) -> None:
        """One command."""
        id, op = asked.pop("id"), asked.pop("op")
        try:
            tell({"id": id, "value": await getattr(self, op)(**asked)})
        except Exception as error:
            tell({"id": id, "error": f"{type(error).__name__}: {error}"})


def _date(at_ms: float | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC)


async def main(url: str, collection: str, generation: str) -> None:
    """Answer until stdin ends."""
    known: Generation = 1 if generation == "1" else 2
    async with AsyncMongoClient[Document](url, w="majority", serverSelectionTimeoutMS=10_000) as client:
        options = CodecOptions[Document](tz_aware=True)
        jobs: AsyncCollection[Document] = client.get_default_database().get_collection(collection, options)
        commands = Commands(Peer(Monque(jobs, known, str(uuid.uuid4()))))
        lines = asyncio.StreamReader(limit=1 << 26)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        answering = set()
        while line := await lines.readline():
            task = asyncio.create_task(commands.answer(json.loads(line)))
            answering.add(task)
            task.add_done_callback(answering.discard)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
