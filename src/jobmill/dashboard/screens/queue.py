"""One queue: what waits in it, how its handlers do, who works for it, and its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec import Struct
from starlette.exceptions import HTTPException

from jobmill.core.tallies import MINUTE_MS, Tally, quantile_ms
from jobmill.core.values import QueueSettings
from jobmill.dashboard.charts import Throughput
from jobmill.dashboard.screens.queues import ListedQueue, history, queue_rows, sums
from jobmill.dashboard.screens.queues import ended as ended_runs
from jobmill.dashboard.screens.throughput import range_of, range_tallies, throughput
from jobmill.dashboard.view import View


class QueueHandler(Struct, frozen=True, kw_only=True):
    """What the jobs of one name did in the last hour."""

    name: str
    #: Runs that ended in the last whole minute, and in each part of the last hour.
    per_minute: int
    per_minute_history: list[int]
    run_p50_ms: float | None
    run_p95_ms: float | None
    errors_1h: int
    #: Its p95 is the longest, or its errors are the most, where there are several names.
    is_slowest: bool = False
    has_most_errors: bool = False


class QueueWorker(Struct, frozen=True, kw_only=True):
    """A worker that claims from the queue. It may run jobs of other queues as well."""

    id: str
    name: str
    running: int
    concurrency: int
    started_ms: int
    stopping: bool


class QueueScreen(Struct, frozen=True, kw_only=True):
    """One queue."""

    queue: ListedQueue
    settings: QueueSettings
    #: When the rate limit allows the next claim; None if it allows one now.
    limited_until_ms: int | None
    wait_p50_ms: float | None
    chart: Throughput
    handlers: list[QueueHandler]
    workers: list[QueueWorker]


class AskPause(Struct, frozen=True, kw_only=True):
    """The queue that shall be paused."""

    queue: str


async def queue(view: View) -> QueueScreen:
    """One queue and a chart of `range`: 1h, 8h, 3d or 30d."""
    reads, now_ms, range, name = view.reads, view.now_ms, range_of(view), _name(view)
    rows, depths, settings, cards, tallies = await asyncio.gather(
        queue_rows(view),
        reads.depths(),
        reads.settings(),
        reads.workers(),
        reads.last_hour(),
    )
    own = [tally for tally in tallies if tally.queue == name]
    workers = [card for card in cards if name in card.queues]
    row = next((row for row in rows if row.queue == name), None)
    if row is None and not own and not workers:
        raise HTTPException(404, f"There is no queue {name}: it has no jobs and no settings, and no worker claims it.")
    charted = await range_tallies(view, range, own, name)
    # The fifth query of the page.
    marks = await reads.marks() if range == "1h" else reads.known_marks()
    own_settings = settings.get(name, QueueSettings())
    depth = next((one for one in depths if one.queue == name), None)
    return QueueScreen(
        queue=row or _empty(name, sum(not card.stopping for card in workers)),
        settings=own_settings,
        limited_until_ms=None if depth is None else depth.limited_until_ms,
        wait_p50_ms=quantile_ms(sums(one.wait_buckets for one in own), 0.5),
        chart=throughput(range, charted, marks, now_ms),
        handlers=_handlers(own, now_ms),
        workers=[
            QueueWorker(
                id=card.id,
                name=card.name,
                running=card.running,
                concurrency=card.concurrency,
                started_ms=card.started_ms,
                stopping=card.stopping,
            )
            for card in workers
        ],
    )


async def ask_pause(view: View) -> AskPause:
    """Ask for the note and the end of a pause."""
    view.require("pause")
    return AskPause(queue=_name(view))


def _name(view: View) -> str:
    name: str = view.request.path_params["queue"]
    return name


def _empty(name: str, workers: int) -> ListedQueue:
    return ListedQueue(
        queue=name,
        due=0,
        later=0,
        held=0,
        running=0,
        failed=0,
        exact=True,
        running_limit=None,
        oldest_due_ms=None,
        wait_p95_ms=None,
        run_p95_ms=None,
        per_minute=0,
        per_minute_history=[],
        errors_1h=0,
        workers=workers,
    )


def _handlers(tallies: Iterable[Tally], now_ms: int) -> list[QueueHandler]:
    """One row for each name, those with the most errors first."""
    by_name: dict[str, list[Tally]] = {}
    for tally in tallies:
        by_name.setdefault(tally.name, []).append(tally)
    rows = {name: _figures(own, now_ms) for name, own in by_name.items()}
    slowest = max((p95 or 0 for *_, p95, _ in rows.values()), default=0)
    most = max((errors for *_, errors in rows.values()), default=0)
    made = [
        QueueHandler(
            name=name,
            per_minute=per_minute,
            per_minute_history=history(by_name[name], now_ms),
            run_p50_ms=p50,
            run_p95_ms=p95,
            errors_1h=errors,
            is_slowest=len(rows) > 1 and p95 is not None and p95 == slowest,
            has_most_errors=len(rows) > 1 and errors > 0 and errors == most,
        )
        for name, (per_minute, p50, p95, errors) in rows.items()
    ]
    return sorted(made, key=lambda one: (-one.errors_1h, -(one.run_p95_ms or 0), one.name))


def _figures(tallies: Sequence[Tally], now_ms: int) -> tuple[int, float | None, float | None, int]:
    minute_ms = now_ms - now_ms % MINUTE_MS - MINUTE_MS
    buckets = sums(one.run_buckets for one in tallies)
    per_minute = sum(ended_runs(one) for one in tallies if one.start_ms == minute_ms)
    errors = sum(one.errored + one.crashed for one in tallies)
    return per_minute, quantile_ms(buckets, 0.5), quantile_ms(buckets, 0.95), errors
