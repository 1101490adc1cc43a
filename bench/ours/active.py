"""What single calls cost while many other jobs of the queue are running."""

from __future__ import annotations

import asyncio
import random
import secrets
import time

from msgspec import Struct, field

from bench.loop import run
from bench.ours.noop import noops
from bench.redis.slowlog import Slowlog, slowlog
from jobmill.core.job import Progress
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Broken, Claim, Claimed, Report
from jobmill.store import Store

AT_ONCE = 200
CALLS = 200
CHECKS = 2
#: Longer than between two looks for leases that have ended.
CHECK_AFTER_S = 5.5
#: Of the jobs that shall stay running, and of those whose leases shall end soon.
LONG_MS, SHORT_MS = 600_000, 2_000


class Active(Struct):
    """Milliseconds of each call: of reads as the caller sees them, of all others as the server does."""

    read: list[float] = field(default_factory=list)
    claim: list[float] = field(default_factory=list)
    settle: list[float] = field(default_factory=list)
    event: list[float] = field(default_factory=list)
    check: list[float] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)


def active(url: str, jobs: int) -> Active:
    """With so many running jobs."""
    return run(_active(url, jobs))


async def _active(url: str, jobs: int) -> Active:
    told = Active()
    async with noops(url) as ours, slowlog(url) as log:
        await ours.fill(jobs + (CHECKS + 1) * (CALLS + AT_ONCE))
        store = ours.client.store
        running = await _claim_all(store, jobs, LONG_MS)
        await _read(store, running, told)
        for _ in range(CHECKS):
            await asyncio.sleep(CHECK_AFTER_S)
            told.check.append(await log.ms(store.exchange([], _claim(1, LONG_MS))))
            await _call(store, running, log, told)
    return told


async def _claim_all(store: Store, jobs: int, lease_ms: int) -> list[Claimed]:
    claimed: list[Claimed] = []
    while len(claimed) < jobs:
        answer = await store.exchange([], _claim(min(AT_ONCE, jobs - len(claimed)), lease_ms))
        claimed += [one for one in answer.claimed if not isinstance(one, Broken)]
    return claimed


def _claim(n: int, lease_ms: int) -> Claim:
    return Claim(
        queues=("default",),
        names={"noop": n},
        n=n,
        lease_ms=lease_ms,
        worker="bench",
        token=secrets.token_hex(16),
    )


async def _read(store: Store, running: list[Claimed], told: Active) -> None:
    for one in random.Random(1).sample(running, CALLS * 5):
        began = time.perf_counter()
        await store.get([one.job.id])
        told.read.append((time.perf_counter() - began) * 1e3)


async def _call(store: Store, running: list[Claimed], log: Slowlog, told: Active) -> None:
    """Claims of one job, settlements of one, and reports of progress, one after the other."""
    chance = random.Random(len(told.check))
    for _ in range(CALLS):
        told.claim.append(await log.ms(store.exchange([], _claim(1, LONG_MS))))
        one = running.pop(chance.randrange(len(running)))
        progress = Report(lease=one.lease, progress=Progress(50))
        told.event.append(await log.ms(store.report([progress])))
        done = settle(one, Succeeded(), DEFAULT_POLICY, store.now())
        told.settle.append(await log.ms(store.exchange([done], None)))


def recovery(url: str, jobs: int) -> Active:
    """After the leases of so many running jobs have ended."""
    return run(_recovery(url, jobs))


async def _recovery(url: str, jobs: int) -> Active:
    told = Active()
    async with noops(url) as ours, slowlog(url) as log:
        await ours.fill(jobs)
        store = ours.client.store
        await _claim_all(store, jobs, SHORT_MS)
        await asyncio.sleep(CHECK_AFTER_S)
        told.recovery.append(await log.ms(store.exchange([], _claim(AT_ONCE, LONG_MS))))
    return told
