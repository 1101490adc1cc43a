"""How many workers a queue needs: what an autoscaler asks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from msgspec import Struct

from jobmill.core.announcing import WorkerCard
from jobmill.core.tallies import Tally, quantile_ms
from jobmill.core.values import Depth, QueueSettings

#: How long a run takes in a queue without tallies.
DEFAULT_RUN_MS: Final = 1_000
DEFAULT_CONCURRENCY: Final = 20
#: A job that is due should have been run within this time.
DEFAULT_TARGET_MS: Final = 30_000
#: The time from which the duration of runs is taken.
RECENT_MS: Final = 15 * 60_000
#: A worker is kept, or started, for jobs that are due within this time: it needs some time to start.
WAKE_AHEAD_MS: Final = 60_000


class Scale(Struct, frozen=True, kw_only=True):
    """What a queue has to do, and how many workers that needs."""

    queue: str
    desired: int
    due: int
    held: int
    running: int
    oldest_due_s: float
    #: How many jobs one worker runs at once.
    concurrency: int
    workers: int
    #: How long the workers that run now need for all due jobs; None without workers.
    drain_s: float | None
    #: Whether there is work, now or soon.
    active: bool


def scale(
    depth: Depth,
    settings: QueueSettings,
    workers: Sequence[WorkerCard],
    tallies: Sequence[Tally],
    *,
    has_work_soon: bool,
    now_ms: int,
    target_ms: int = DEFAULT_TARGET_MS,
    concurrency: int | None = None,
) -> Scale:
    """How many workers run all due jobs of a queue within `target_ms`. `workers` are those of the queue.

    Held jobs need no worker, and neither do jobs of a paused queue. Running jobs keep their workers. A queue that may
    run only some jobs at once needs no more workers than those.
    """
    slots = concurrency or _typical([card.concurrency for card in workers]) or DEFAULT_CONCURRENCY
    run_ms = quantile_ms([sum(counts) for counts in zip(*(one.run_buckets for one in tallies), strict=True)], 0.5)
    run_ms = DEFAULT_RUN_MS if run_ms is None else run_ms
    paused = settings.at(now_ms).paused
    due = 0 if paused else depth.due
    needed = due * run_ms / target_ms + depth.running
    if settings.running_limit is not None:
        needed = min(needed, max(settings.running_limit, depth.running))
    desired = max(ceil(needed / slots), ceil(depth.running / slots))
    active = desired > 0 or (has_work_soon and not paused)
    room = sum(card.concurrency for card in workers)
    return Scale(
        queue=depth.queue,
        desired=max(desired, int(active)),
        due=depth.due,
        held=depth.held,
        running=depth.running,
        oldest_due_s=0.0 if depth.oldest_due_ms is None else max(0, now_ms - depth.oldest_due_ms) / 1000,
        concurrency=slots,
        workers=len(workers),
        drain_s=round(depth.due * run_ms / room / 1000, 1) if room else None,
        active=active,
    )


def _typical(values: Sequence[int]) -> int | None:
    """The median."""
    return sorted(values)[len(values) // 2] if values else None
