"""What is true of the whole store: metrics for one exporter, and how many workers each queue needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobmill.core.announcing import WorkerCard
from jobmill.core.lane_state import LANE_WORDS, lane_word
from jobmill.core.scaling import DEFAULT_TARGET_MS, RECENT_MS, WAKE_AHEAD_MS, Scale, scale
from jobmill.core.tallies import MINUTE_MS
from jobmill.core.values import CountUpTo, Depth, Filter, Lane, QueueSettings
from jobmill.metrics.late import late_recurrences
from jobmill.metrics.text import Labels, family
from jobmill.store import Store

STATES = ("due", "later", "held", "running", "failed")
#: At most this many recurrences are shown as late.
MAX_LATE = 1_000
LANE_STATES = ("running", "admitted", "ready", "later")
#: At most this many lanes of a queue are counted, the first by name.
MAX_LANES = 1_000


async def store_metrics(store: Store) -> str:
    """Depths, workers and late recurrences in Prometheus' text format. Counts end at 10,000."""
    depths, settings, workers = await asyncio.gather(store.depths(), store.settings(), store.workers())
    now_ms = store.now()
    late = await late_recurrences(store, now_ms, MAX_LATE)
    lanes = await _lanes(store, depths, settings)
    queues = sorted({depth.queue for depth in depths} | {queue for card in workers for queue in card.queues})
    gauges: list[tuple[str, str, list[tuple[Labels, float]]]] = [
        (
            "jobmill_queue_jobs",
            "Jobs by queue and state; at most 10,000 are counted.",
            [({"queue": one.queue, "state": state}, getattr(one, state)) for one in depths for state in STATES],
        ),
        (
            "jobmill_queue_oldest_due_seconds",
            "How long the oldest due job has waited; 0 if none is due.",
            [({"queue": one.queue}, max(0, now_ms - (one.oldest_due_ms or now_ms)) / 1000) for one in depths],
        ),
        (
            "jobmill_queue_paused",
            "Whether the queue is paused.",
            [({"queue": one.queue}, int(settings.get(one.queue, QueueSettings()).paused)) for one in depths],
        ),
        (
            "jobmill_queue_running_limit",
            "The running limit of the queue, if it has one.",
            [({"queue": queue}, one.running_limit) for queue, one in settings.items() if one.running_limit is not None],
        ),
        (
            "jobmill_workers",
            "Workers that claim from the queue.",
            [({"queue": queue}, sum(queue in card.queues for card in workers)) for queue in queues],
        ),
        (
            "jobmill_recurrence_late_seconds",
            "For how long each due recurring job has been due.",
            [({"name": job.name, "key": job.unique_key or ""}, (now_ms - due_ms) / 1000) for job, due_ms in late],
        ),
        (
            "jobmill_lane_jobs",
            "Jobs of lanes by queue and state; of the first 1,000 lanes, and at most 1,000 of each.",
            [
                ({"queue": queue, "state": state}, sum(getattr(lane, state) for lane in found))
                for queue, found in lanes.items()
                for state in LANE_STATES
            ],
        ),
        (
            "jobmill_lanes",
            "Lanes by queue and by what keeps their jobs from running; at most 1,000 are counted.",
            [
                ({"queue": queue, "state": word}, words.count(word))
                for queue, found in lanes.items()
                for words in [[lane_word(lane, settings.get(queue, QueueSettings()).lanes, now_ms) for lane in found]]
                for word in LANE_WORDS
            ],
        ),
    ]
    return "".join(family(name, "gauge", help, samples) for name, help, samples in gauges)


async def _lanes(store: Store, depths: Sequence[Depth], settings: dict[str, QueueSettings]) -> dict[str, list[Lane]]:
    """The lanes of the queues that have some. A queue without held jobs and without a rule has none that matter."""
    queues = [one.queue for one in depths if one.held or settings.get(one.queue, QueueSettings()).lanes is not None]
    found = await asyncio.gather(*(store.lanes(queue, limit=MAX_LANES) for queue in queues))
    return {queue: lanes for queue, lanes in zip(queues, found, strict=True) if lanes}


async def scales(
    store: Store,
    queues: Sequence[str] | None = None,
    *,
    target_ms: int = DEFAULT_TARGET_MS,
    concurrency: int | None = None,
) -> list[Scale]:
    """How many workers each of these queues needs, or each queue."""
    depths, settings, workers = await asyncio.gather(store.depths(queues), store.settings(), store.workers())
    return [
        await _scale(store, depth, settings.get(depth.queue, QueueSettings()), workers, target_ms, concurrency)
        for depth in depths
    ]


async def _scale(
    store: Store,
    depth: Depth,
    settings: QueueSettings,
    workers: Sequence[WorkerCard],
    target_ms: int,
    concurrency: int | None,
) -> Scale:
    now_ms = store.now()
    soon = Filter(queue=depth.queue, states=("waiting",), held=False, due_before_ms=now_ms + WAKE_AHEAD_MS)
    has_work_soon = depth.due > 0 or (depth.later > 0 and await store.count_up_to(soon, 1) != CountUpTo(0, exact=True))
    return scale(
        depth,
        settings,
        [card for card in workers if depth.queue in card.queues and not card.stopping],
        await store.tallies(now_ms - RECENT_MS, now_ms + 1, MINUTE_MS, depth.queue),
        has_work_soon=has_work_soon,
        now_ms=now_ms,
        target_ms=target_ms,
        concurrency=concurrency,
    )
