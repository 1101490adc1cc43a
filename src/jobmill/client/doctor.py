"""The checks of `jobmill doctor` that every store shares: workers, clocks, long runs, late recurrences.

Each check is a function of facts that the port gives. What is special about a database is in its store: `diagnose`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from jobmill.core.announcing import WorkerCard
from jobmill.core.due import due_of
from jobmill.core.durations import shown_ms
from jobmill.core.findings import IDS_SHOWN, REACHABLE, Finding
from jobmill.core.job import Job
from jobmill.core.tallies import Tally, quantile_ms
from jobmill.core.values import Depth, Filter, QueueSettings
from jobmill.store import Store

HOUR_MS = 60 * 60_000
MAX_SKEW_MS = 1_000
#: A due job that nobody claims, and a recurrence, are late after this time.
LATE_MS = 60_000
#: A run is long if it takes this many times the duration that 99 % of all runs do not exceed, and more than a minute.
LONG_RUN = 10
#: The share of runs that may lose their lease.
MAX_LOST = 0.01
#: After this time without a whole purge, workers are behind with it. The alert JobmillPurgeBehind has the same number.
PURGE_LATE_MS = 30 * 60_000
PAGE = 1_000
#: The number of late queues whose jobs are read, and of jobs of each.
LATE_QUEUES_READ = 50
OVERDUE_READ = 100
_OLDEST = f"the {OVERDUE_READ} jobs of each queue that have been due for longest"


class Examined(Struct, frozen=True, kw_only=True):
    """What the checks look at."""

    now_ms: int
    #: How far the clock of this machine is ahead of the clock of the store.
    own_skew_ms: int
    depths: Sequence[Depth]
    settings: dict[str, QueueSettings]
    workers: Sequence[WorkerCard]
    #: Queues that workers of other programs claim from. They do not say which names they handle.
    foreign: set[str]
    #: Of the last day, by the hour.
    tallies: Sequence[Tally]
    running: Sequence[Job]
    #: Queues that are not paused and have a job that has been due for a minute, and such jobs of some of them.
    late_queues: Sequence[str]
    overdue: Sequence[Job]
    #: There are more of them, which were not read.
    has_more_overdue: bool
    recurring: Sequence[Job]


async def examine(store: Store) -> list[Finding]:
    """All findings: that the store answers, then the shared ones, then those of the store."""
    facts, of_store = await asyncio.gather(_facts(store), store.diagnose())
    findings = [*(check(facts) for check in CHECKS), *of_store]
    return sorted(findings, key=lambda one: one.check != REACHABLE)


async def _facts(store: Store) -> Examined:
    now_ms = store.now()
    depths, settings, workers, tallies, running, recurring = await asyncio.gather(
        store.depths(),
        store.settings(),
        store.workers(),
        store.tallies(now_ms - 24 * HOUR_MS, now_ms + 1, HOUR_MS),
        store.find(Filter(states=("running",)), limit=PAGE),
        store.find(Filter(states=("waiting",), recurring=True), limit=PAGE),
    )
    late_ms = now_ms - LATE_MS
    is_paused = {queue for queue, one in settings.items() if one.paused}
    late = [one.queue for one in depths if (one.oldest_due_ms or now_ms) < late_ms and one.queue not in is_paused]
    pages = await asyncio.gather(
        *(
            store.find(Filter(queue=queue, states=("waiting",), held=False, due_before_ms=late_ms), limit=OVERDUE_READ)
            for queue in late[:LATE_QUEUES_READ]
        )
    )
    return Examined(
        now_ms=now_ms,
        own_skew_ms=round(time.time() * 1000) - now_ms,
        depths=depths,
        settings=settings,
        workers=[card for card in workers if card.system == "jobmill"],
        foreign={queue for card in workers if card.system != "jobmill" for queue in card.queues},
        tallies=tallies,
        running=running.jobs,
        late_queues=late,
        overdue=[job for page in pages for job in page.jobs],
        has_more_overdue=len(late) > LATE_QUEUES_READ or any(page.next is not None for page in pages),
        recurring=recurring.jobs,
    )


def _jobs(facts: Examined) -> Finding:
    live = sum(one.due + one.later + one.held + one.running for one in facts.depths)
    final = sum(one.succeeded + one.failed + one.cancelled for one in facts.depths)
    exact = all(one.exact for one in facts.depths)
    text = f"{live:,} live and {final:,} final jobs" if exact else f"more than {live + final:,} jobs"
    return Finding(check="jobs", text=f"the store has {text}", evidence={"live": live, "final": final, "exact": exact})


def _clock_skew(facts: Examined) -> Finding:
    skews = {card.name: card.clock_skew_ms for card in facts.workers} | {"this machine": facts.own_skew_ms}
    off = {name: ms for name, ms in skews.items() if abs(ms) > MAX_SKEW_MS}
    if not off:
        return Finding(check="clock_skew", text="the clocks agree with the clock of the store")
    worst = max(off.items(), key=lambda one: abs(one[1]))
    text = f"the clock of {worst[0]} differs from the clock of the store by {shown_ms(abs(worst[1]))}"
    remedy = "set the clocks by NTP: due times that machines compute are wrong by that much"
    return Finding(check="clock_skew", level="warning", text=text, evidence={"skew_ms": off}, remedy=remedy)


def _no_worker(facts: Examined) -> Finding:
    served = facts.foreign.union(*(card.queues for card in facts.workers))
    idle = [queue for queue in facts.late_queues if queue not in served]
    if not idle:
        return Finding(check="no_worker", text="every queue with jobs that are due has a worker")
    text = f"no worker claims from: {', '.join(idle)}"
    remedy = f"start a worker with --queue {idle[0]}"
    return Finding(check="no_worker", level="error", text=text, evidence={"queues": idle}, remedy=remedy)


def _without_handler(facts: Examined) -> list[Job]:
    """Jobs of queues with workers, none of which has a handler for the job."""
    known: defaultdict[str, set[str]] = defaultdict(set)
    for card in facts.workers:
        for queue in set(card.queues) - facts.foreign:
            known[queue].update(card.names)
    return [job for job in facts.overdue if job.queue in known and job.name not in known[job.queue]]


def _unknown_names(facts: Examined) -> Finding:
    unknown = sorted({job.name for job in _without_handler(facts)})
    if not unknown:
        return Finding(
            check="unknown_names",
            text=f"workers have handlers for {_OLDEST if facts.has_more_overdue else 'all jobs that are due'}",
        )
    text = f"no worker has a handler for: {', '.join(unknown[:10])}"
    remedy = "deploy workers with these handlers, or remove the jobs"
    return Finding(check="unknown_names", level="warning", text=text, evidence={"names": unknown}, remedy=remedy)


def _blocked_lanes(facts: Examined) -> Finding:
    """A job that no worker runs keeps its slot, so that other jobs of its lane wait for it."""
    blocking = [job for job in _without_handler(facts) if job.lane is not None]
    if not blocking:
        among = f"; this is about {_OLDEST}" if facts.has_more_overdue else ""
        return Finding(check="blocked_lanes", text=f"no lane waits for a job that no worker can run{among}")
    lanes = sorted({f"{job.lane} (queue {job.queue})" for job in blocking})
    text = f"jobs that no worker can run have slots of lanes: {', '.join(lanes[:10])}"
    evidence = {"ids": [job.id for job in blocking[:IDS_SHOWN]], "lanes": lanes[:IDS_SHOWN]}
    remedy = f"deploy workers with these handlers, or remove the jobs: jobmill jobs remove {blocking[0].id}"
    return Finding(check="blocked_lanes", level="warning", text=text, evidence=evidence, remedy=remedy)


def _long_runs(facts: Examined) -> Finding:
    counts: defaultdict[str, list[int]] = defaultdict(list)
    for tally in facts.tallies:
        before = counts[tally.name] or [0] * len(tally.run_buckets)
        counts[tally.name] = [a + b for a, b in zip(before, tally.run_buckets, strict=True)]
    long = []
    for job in facts.running:
        usual_ms = quantile_ms(counts[job.name], 0.99) if counts.get(job.name) else None
        ran_ms = facts.now_ms - (facts.now_ms if job.started_ms is None else job.started_ms)
        if usual_ms is not None and ran_ms > max(LONG_RUN * usual_ms, 60_000):
            long.append({"id": job.id, "name": job.name, "running_ms": ran_ms, "usual_ms": usual_ms})
    if not long:
        return Finding(check="long_runs", text="no run takes much longer than usual")
    first = long[0]
    text = f"{len(long)} runs take more than {LONG_RUN} times as long as usual, for example job {first['id']}"
    evidence = {"jobs": long[:IDS_SHOWN]}
    remedy = f"look at it: jobmill jobs show {first['id']} --logs; a timeout ends such runs"
    return Finding(check="long_runs", level="warning", text=text, evidence=evidence, remedy=remedy)


def _lost_leases(facts: Examined) -> Finding:
    recent = [tally for tally in facts.tallies if tally.start_ms > facts.now_ms - 2 * HOUR_MS]
    lost, claimed = sum(tally.lost for tally in recent), sum(tally.claimed for tally in recent)
    if lost <= MAX_LOST * claimed:
        return Finding(check="lost_leases", text="leases are kept", evidence={"lost": lost, "claimed": claimed})
    text = f"{lost} of {claimed} runs lost their lease in the last two hours"
    remedy = "look for handlers that block the event loop, overloaded machines, or a lease that is too short"
    evidence = {"lost": lost, "claimed": claimed}
    return Finding(check="lost_leases", level="warning", text=text, evidence=evidence, remedy=remedy)


def _crashes(facts: Examined) -> Finding:
    names: defaultdict[str, int] = defaultdict(int)
    for tally in facts.tallies:
        if tally.crashed and tally.start_ms > facts.now_ms - 2 * HOUR_MS:
            names[tally.name] += tally.crashed
    if not names:
        return Finding(check="crashes", text="no worker died while it ran jobs in the last two hours")
    text = f"workers died while they ran jobs of: {', '.join(sorted(names))}"
    remedy = "look for memory limits and signals in the logs of the workers; a handler with isolate=True ends alone"
    return Finding(check="crashes", level="warning", text=text, evidence={"crashes": dict(names)}, remedy=remedy)


def _purge_behind(facts: Examined) -> Finding:
    """Each worker purges the whole store, so the one that finished last says how the store is doing."""
    ages = {card.name: card.purge_age_ms for card in facts.workers if card.purge_age_ms is not None}
    if not ages or min(ages.values()) <= PURGE_LATE_MS:
        text = "final jobs are removed after their retention" if ages else "no worker runs that removes final jobs"
        return Finding(check="purge_behind", text=text, evidence={"purge_age_ms": ages})
    late = shown_ms(min(ages.values()) // 60_000 * 60_000)
    text = f"for {late}, no purge has removed all final jobs that are past their retention"
    remedy = "look for errors of the janitor in the logs of the workers; if there are none, start more workers"
    evidence = {"purge_age_ms": ages}
    return Finding(check="purge_behind", level="warning", text=text, evidence=evidence, remedy=remedy)


def _mixed_versions(facts: Examined) -> Finding:
    versions = sorted({card.version for card in facts.workers})
    if len(versions) <= 1:
        return Finding(check="mixed_versions", text="all workers have the same version of Jobmill")
    text = f"workers have several versions of Jobmill: {', '.join(versions)}"
    remedy = "finish the deployment; UPGRADING.md says which versions may run beside each other"
    return Finding(check="mixed_versions", level="warning", text=text, evidence={"versions": versions}, remedy=remedy)


def _late_recurrences(facts: Examined) -> Finding:
    dues = [(due_of(job), job) for job in facts.recurring]
    late = [job for due_ms, job in dues if due_ms is not None and due_ms < facts.now_ms - LATE_MS]
    if not late:
        return Finding(check="late_recurrences", text="all recurring jobs run in time")
    first = late[0]
    text = f"{len(late)} recurring jobs are late, for example {first.name} ({first.unique_key})"
    ids = [job.id for job in late[:IDS_SHOWN]]
    remedy = f"ask why: jobmill jobs why {first.id}"
    return Finding(check="late_recurrences", level="error", text=text, evidence={"ids": ids}, remedy=remedy)


def _pinned(facts: Examined) -> Finding:
    pinned = [job for job in facts.recurring if job.recurrence is not None and job.recurrence.pinned]
    if not pinned:
        return Finding(check="pinned", text="no recurrence is pinned")
    ids = [job.id for job in pinned[:IDS_SHOWN]]
    text = f"{len(pinned)} recurrences were edited by hand and do not follow the code"
    return Finding(check="pinned", text=text, evidence={"ids": ids})


CHECKS = (
    _jobs,
    _clock_skew,
    _no_worker,
    _unknown_names,
    _blocked_lanes,
    _long_runs,
    _lost_leases,
    _crashes,
    _purge_behind,
    _mixed_versions,
    _late_recurrences,
    _pinned,
)
