"""The workers that run now, and what they run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from jobmill.client.doctor import LONG_RUN, MAX_SKEW_MS
from jobmill.core.announcing import WorkerCard
from jobmill.core.job import Job
from jobmill.core.tallies import MINUTE_MS, Tally
from jobmill.core.values import Filter
from jobmill.dashboard.fields import whole_page
from jobmill.dashboard.shown import duration
from jobmill.dashboard.view import PAGE, View
from jobmill.errors import InvalidValue
from jobmill.runtime.watchdog import STUCK_AFTER_S

HOUR_MS: Final = 3_600_000
#: How many running jobs are read, and how many of them are listed.
RUNNING_READ: Final = 500
RUNNING_LISTED: Final = 50
#: A worker announces itself every ten seconds.
LATE_MS: Final = 15_000


class ListedWorker(Struct, frozen=True, kw_only=True):
    """One worker. Of a worker of another system, host, queues and the time of its start may be all that is known."""

    id: str
    name: str
    system: str
    host: str
    pid: int | None
    version: str | None
    python: str | None
    started_ms: int | None
    queues: list[str]
    concurrency: int | None
    #: How many jobs it runs; of a worker of another system, how many running jobs carry its name.
    running: int | None
    clock_skew_ms: int | None
    #: Milliseconds since the last iteration of each of its loops.
    loops: dict[str, int]
    stopping: bool
    seen_ms: int
    #: What is wrong with it.
    warnings: list[str]


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job that runs now."""

    id: str
    name: str
    queue: str
    worker: str | None
    started_ms: int | None
    #: How long runs of this name took on average in the last hour.
    usual_ms: float | None
    is_long: bool


class WorkersScreen(Struct, frozen=True, kw_only=True):
    """One page of the workers, and the jobs that have run longest, of all of them or of one."""

    workers: list[ListedWorker]
    worker_count: int
    page: int
    is_last_page: bool
    #: How many workers have each version of Jobmill, the most frequent version first.
    versions: dict[str, int]
    running: list[RunningJob]
    running_count: int
    #: False: there are more running jobs than were read.
    exact: bool
    #: The name of the worker whose jobs are listed.
    worker: str | None


class AskWorkerStop(Struct, frozen=True, kw_only=True):
    """The worker that shall stop, and where to go then."""

    id: str
    name: str
    running: int | None
    back: str


async def workers(view: View) -> WorkersScreen:
    """All workers with the jobs that they run."""
    reads, now_ms, chosen = view.reads, view.now_ms, view.param("worker")
    number = whole_page(view.param("page"))
    cards, page, tallies = await asyncio.gather(
        reads.workers(),
        reads.find(Filter(states=("running",)), limit=RUNNING_READ),
        reads.last_hour(),
    )
    usual, by_worker = usual_ms(tallies), Counter(job.worker for job in page.jobs)
    jobs = [job for job in page.jobs if chosen is None or job.worker == chosen]
    jobs.sort(key=lambda job: now_ms if job.started_ms is None else job.started_ms)
    versions = Counter(card.version for card in cards if card.system == "jobmill")
    return WorkersScreen(
        workers=[
            _worker(card, by_worker.get(card.name), now_ms) for card in cards[(number - 1) * PAGE : number * PAGE]
        ],
        worker_count=len(cards),
        page=number,
        is_last_page=len(cards) <= number * PAGE,
        versions=dict(versions.most_common()),
        running=[_running(job, usual.get(job.name), now_ms) for job in jobs[:RUNNING_LISTED]],
        running_count=len(jobs),
        exact=page.next is None,
        worker=chosen,
    )


async def ask_worker_stop(view: View) -> AskWorkerStop:
    """Ask before a worker is stopped: `id`."""
    view.require("worker_stop")
    id = view.param("id")
    card = next((one for one in await view.reads.workers() if one.id == id and one.system == "jobmill"), None)
    if card is None:
        raise InvalidValue("id", "the id of a worker that runs now", id, "it may have stopped meanwhile")
    back = view.local(view.param("back"), view.url("workers"))
    return AskWorkerStop(id=card.id, name=card.name, running=card.running, back=back)


def usual_ms(tallies: Iterable[Tally]) -> dict[str, float]:
    """How long runs of each name took on average."""
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for tally in tallies:
        sums[tally.name] += tally.run_ms
        counts[tally.name] += sum(tally.run_buckets)
    return {name: sums[name] / count for name, count in counts.items() if count}


def _worker(card: WorkerCard, found: int | None, now_ms: int) -> ListedWorker:
    is_ours = card.system == "jobmill"
    return ListedWorker(
        id=card.id,
        name=card.name,
        system=card.system,
        host=card.host,
        pid=card.pid or None,
        version=card.version or None,
        python=card.python or None,
        started_ms=card.started_ms or None,
        queues=list(card.queues),
        concurrency=card.concurrency or None,
        running=card.running if is_ours else found,
        clock_skew_ms=card.clock_skew_ms if is_ours else None,
        loops=card.loops,
        stopping=card.stopping,
        seen_ms=card.seen_ms,
        warnings=_warnings(card, now_ms) if is_ours else [],
    )


def _warnings(card: WorkerCard, now_ms: int) -> list[str]:
    found, skew = [], card.clock_skew_ms
    if abs(skew) > MAX_SKEW_MS:
        found.append(f"Its clock is {duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the store")
    found += [
        f"Its {loop} loop has been stuck for {duration(age)}"
        for loop, age in sorted(card.loops.items())
        if age > STUCK_AFTER_S * 1000
    ]
    if now_ms - card.seen_ms > LATE_MS:
        found.append(f"It has not announced itself for {duration(now_ms - card.seen_ms)}")
    return found


def _running(job: Job, usual: float | None, now_ms: int) -> RunningJob:
    ran_ms = 0 if job.started_ms is None else now_ms - job.started_ms
    return RunningJob(
        id=job.id,
        name=job.name,
        queue=job.queue,
        worker=job.worker,
        started_ms=job.started_ms,
        usual_ms=usual,
        is_long=usual is not None and ran_ms > max(LONG_RUN * usual, MINUTE_MS),
    )
