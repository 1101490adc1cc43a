"""One measurement of whichever jobmill this interpreter has installed. Run by path; imports nothing else of `bench`.

    python -P probe.py '{"measure": "drain", "url": "sqlite:///...", "jobs": 1000, "count": false}'

It prints `begun` when the clock is about to start and `ended` when it has stopped, and waits for a line of input after
each: meanwhile the parent reads what the server has spent. The last line is the result, in JSON.

It runs on older and newer trees, so it uses few public names, and tries a newer name before an older one.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import jobmill

BATCH = 1_000
CONCURRENCY = 50
#: The first call of each kind prepares its statement, on each connection of the pool.
WARM_CALLS = 10
#: After a pickup the worker has this long to become idle again.
GAP_S = 0.01

counted: Counter[str] = Counter()


def halt(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


class Clock:
    """Wall time and CPU between the two halts, and the statements that SQLite ran meanwhile."""

    def __init__(self) -> None:
        halt("begun")
        self._before = counted.copy()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self, jobs: int) -> dict[str, Any]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        counts = {name: counted[name] - self._before[name] for name in counted}
        halt("ended")
        return {"jobs": jobs, "seconds": wall, "cpu_s": cpu, **counts}


def worker(client: Any) -> Any:
    try:
        return jobmill.Worker(client, concurrency=CONCURRENCY)  # type: ignore[call-arg,unused-ignore]
    except Exception:  # an unknown option: its error has another name in other trees
        return jobmill.Worker(client, slots=CONCURRENCY)  # type: ignore[call-arg,unused-ignore]


def draft(handler: Any) -> Any:
    make = getattr(handler, "draft", None) or handler.job
    return make()


async def drain(url: str, jobs: int) -> dict[str, Any]:
    """Run all jobs that wait, from the start of the worker until it has stopped, with everything settled."""
    client: Any = jobmill.connect(url)
    ran, all_ran = 0, asyncio.Event()

    async def run() -> None:
        nonlocal ran
        ran += 1
        if ran == jobs:
            all_ran.set()

    noop = client.handler(name="noop")(run)

    await client.store.migrate()
    async with client:
        one = draft(noop)
        for first in range(0, jobs, BATCH):
            await client.enqueue_many([one] * min(BATCH, jobs - first))
        clock = Clock()
        async with worker(client):
            await all_ran.wait()
        return clock.stop(jobs)


async def enqueue(url: str, jobs: int, callers: int = 1, batch: int = 1) -> dict[str, Any]:
    """Enqueue all jobs: by a number of callers, each of which awaits its call before the next one."""
    client: Any = jobmill.connect(url)

    async def run() -> None:
        pass

    noop = client.handler(name="noop")(run)

    await client.store.migrate()
    async with client:
        await noop.enqueue()  # connects
        for _ in range(WARM_CALLS):
            await client.enqueue_many([draft(noop), draft(noop)])
        left = jobs

        async def call() -> None:
            nonlocal left
            while left > 0:
                left -= batch
                await (noop.enqueue() if batch == 1 else client.enqueue_many([draft(noop) for _ in range(batch)]))

        clock = Clock()
        await asyncio.gather(*(call() for _ in range(callers)))
        return clock.stop(jobs)


async def pickup(url: str, jobs: int) -> dict[str, Any]:
    """One job after the other for an idle worker in another process (on `memory://` in this one).

    The seconds are those from each enqueue until its handler runs, without the gaps; the CPU is that of both processes.
    """
    there = None if url.startswith("memory:") else Picker(url)
    client: Any = jobmill.connect(url)
    started = asyncio.Event()

    async def run() -> None:
        started.set()

    pick = client.handler(name="pick")(run)

    await client.store.migrate()
    async with client:
        here = None if there else await worker(client).__aenter__()

        async def one() -> float:
            started.clear()
            began = time.perf_counter()
            await pick.enqueue()
            await (there.picked() if there else started.wait())
            seconds = time.perf_counter() - began
            await asyncio.sleep(GAP_S)
            return seconds

        if there:
            await there.begin()
        await one()  # connects
        clock = Clock()
        cpu_before = there.cpu_s() if there else 0.0
        waited = sum([await one() for _ in range(jobs)])
        cpu_of_worker = there.cpu_s() - cpu_before if there else 0.0
        result = clock.stop(jobs)
        if here:
            await here.__aexit__(None, None, None)
    result |= {"seconds": waited, "cpu_s": result["cpu_s"] + cpu_of_worker}
    return result | {name: result.get(name, 0) + more for name, more in (there.end() if there else {}).items()}


class Picker:
    """The worker process of `pickup`: says a line for each job that it starts."""

    def __init__(self, url: str) -> None:
        asked = json.dumps({"measure": "picker", "url": url, "jobs": 0, "count": bool(counted)})
        command = [sys.executable, "-P", __file__, asked]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def begin(self) -> None:
        self._process.stdin.write("\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        await self.picked()

    async def picked(self) -> None:
        line = await asyncio.to_thread(self._process.stdout.readline)  # type: ignore[union-attr]
        if not line:
            raise RuntimeError("the worker process has ended")

    def cpu_s(self) -> float:
        """So far, by the kernel's count of every thread, to the nanosecond."""
        folder = f"/proc/{self._process.pid}/task"
        total = 0
        for thread in os.listdir(folder):
            with open(f"{folder}/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def end(self) -> dict[str, int]:
        """Stop the worker; the statements of SQLite that it ran since the first job."""
        output, _ = self._process.communicate("\n", timeout=60)
        counts = json.loads(output.splitlines()[-1])
        return {name: counts[name] for name in counted}


async def picker(url: str, jobs: int) -> dict[str, Any]:
    client: Any = jobmill.connect(url)

    before: Counter[str] | None = None

    async def run() -> None:
        nonlocal before
        before = before or counted.copy()  # the first job is not counted
        print("started", flush=True)

    client.handler(name="pick")(run)

    await asyncio.to_thread(sys.stdin.readline)
    async with client, worker(client):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return {name: counted[name] - (before or counted)[name] for name in counted}


def count_statements() -> None:
    """Count what SQLite runs: statements, and as round trips the transactions that end."""
    connect: Any = sqlite3.connect
    counted.update(statements=0, trips=0)

    def trace(sql: str) -> None:
        if not sql.startswith("--"):  # what a trigger runs
            counted["statements"] += 1
            counted["trips"] += sql.startswith(("COMMIT", "ROLLBACK", "commit", "rollback"))

    def traced(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced


MEASURES: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "drain": drain,
    "enqueue": enqueue,
    "pickup": pickup,
    "picker": picker,
}


def main(asked: dict[str, Any]) -> None:
    measure, count = MEASURES[asked.pop("measure")], asked.pop("count")
    if count:
        count_statements()
    loop_factory = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(measure(**asked))
    result.setdefault("tree", os.path.dirname(jobmill.__file__))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(json.loads(sys.argv[1]))
