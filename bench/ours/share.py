"""One of several worker processes that share the jobs of a queue: none of them knows when all are done."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable

from msgspec import Struct

from bench.child import BEGUN, READY, halt
from bench.loop import run
from jobmill.client.client import Client, connect
from jobmill.worker.worker import Worker

ASYNC, SYNC, ISOLATED = "async", "sync", "isolated"


class Share(Struct, frozen=True, kw_only=True):
    """Of one process: when its first handler ran, in nanoseconds since 1970 (0: none did), and its CPU since then.

    That of processes that it started, and that have ended, is part of it.
    """

    began_ns: int
    cpu_seconds: float


class _Clock:
    def __init__(self) -> None:
        self.began_ns = 0
        self._cpu = 0.0

    def run(self) -> None:
        if not self.began_ns:
            self.began_ns, self._cpu = time.time_ns(), _cpu_seconds()

    def told(self) -> Share:
        return Share(began_ns=self.began_ns, cpu_seconds=_cpu_seconds() - self._cpu if self.began_ns else 0.0)


def _cpu_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def share(url: str, slots: int, kind: str = ASYNC) -> Share:
    """Halts before its worker starts, and works until it is told to go on a second time."""
    return run(_share(url, slots, kind))


async def _share(url: str, slots: int, kind: str) -> Share:
    clock = _Clock()
    client = KINDS[kind](url, clock)
    async with client:
        halt(READY)
        if kind == ISOLATED:  # whose handlers run elsewhere
            clock.run()
        async with Worker(client, concurrency=slots):
            await asyncio.to_thread(halt, BEGUN)
            return clock.told()


def _async(url: str, clock: _Clock) -> Client:
    client = connect(url)

    @client.handler()
    async def noop() -> None:
        clock.run()

    return client


def _sync(url: str, clock: _Clock) -> Client:
    client = connect(url)

    @client.handler()
    def noop() -> None:
        clock.run()

    return client


def _isolated(url: str, _: _Clock) -> Client:
    os.environ["JOBMILL_URL"] = url  # for the processes of the jobs too, which import the module again
    from bench.ours.isolated import client

    return client


KINDS: dict[str, Callable[[str, _Clock], Client]] = {ASYNC: _async, SYNC: _sync, ISOLATED: _isolated}
