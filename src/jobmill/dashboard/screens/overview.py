"""The overview: figures, throughput, what needs a person, and the queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from starlette.responses import RedirectResponse

from jobmill.core.announcing import WorkerCard
from jobmill.core.tallies import Tally, quantile_ms
from jobmill.dashboard.charts import Throughput
from jobmill.dashboard.reads import LATE_MS
from jobmill.dashboard.screens.attention import Attention, attention
from jobmill.dashboard.screens.queues import ListedQueue, queue_rows, sums
from jobmill.dashboard.screens.throughput import range_of, range_tallies, throughput
from jobmill.dashboard.shown import duration
from jobmill.dashboard.view import View


class OverviewScreen(Struct, frozen=True, kw_only=True):
    """The state of the store. Counts of due jobs stop at 10,000 for each queue; then `exact` is false."""

    #: Nothing was ever enqueued, as far as the store knows.
    is_empty: bool
    due: int
    exact: bool
    due_text: str
    oldest_due_ms: int | None
    oldest_text: str
    is_late: bool
    running: int
    #: How many jobs the workers that are not stopping can run at once.
    concurrency: int
    running_text: str
    failed_1h: int
    failed_text: str
    workers: int
    workers_text: str
    chart: Throughput
    attention: list[Attention]
    #: The sentence where nothing needs attention.
    all_well: str
    queues: list[ListedQueue]


async def overview(view: View) -> OverviewScreen | RedirectResponse:
    """What the store does now and did in the last hour, and a chart of `range`: 1h, 8h, 3d or 30d.

    Visitors who see the jobs of some tenants only begin at the list of jobs.
    """
    if view.access.tenants is not None:
        return RedirectResponse(view.url("jobs"), 303)
    reads, now_ms, range = view.reads, view.now_ms, range_of(view)
    rows, settings, workers, tallies = await asyncio.gather(
        queue_rows(view),
        reads.settings(),
        reads.workers(),
        reads.last_hour(),
    )
    # A page makes at most five queries. Four are made; the fifth is for the chart of a longer range, or else for late
    # recurring jobs if there may be any, or else for marks. The loop of live updates reads these two as well.
    oldest_ms = min((row.oldest_due_ms for row in rows if row.oldest_due_ms is not None), default=None)
    is_late = oldest_ms is not None and now_ms - oldest_ms > LATE_MS
    is_hour = range == "1h"
    late = (await reads.late() if is_hour else reads.known_late()) if is_late else []
    marks = await reads.marks() if is_hour and not is_late else reads.known_marks()
    charted = await range_tallies(view, range, tallies)
    failed, finished = sum(one.failed for one in tallies), sum(one.failed + one.succeeded for one in tallies)
    running = sum(row.running for row in rows)
    concurrency = sum(card.concurrency for card in workers if not card.stopping)
    return OverviewScreen(
        is_empty=not rows and not tallies,
        due=sum(row.due for row in rows),
        exact=all(row.exact for row in rows),
        due_text=_due_text(rows),
        oldest_due_ms=oldest_ms,
        oldest_text=_oldest_text(rows, tallies, oldest_ms),
        is_late=is_late,
        running=running,
        concurrency=concurrency,
        running_text=_running_text(concurrency - running, workers),
        failed_1h=failed,
        failed_text=_failed_text(failed, finished),
        workers=len(workers),
        workers_text=_workers_text(workers),
        chart=throughput(range, charted, marks, now_ms),
        attention=attention(view, rows, settings, workers, tallies, late, marks),
        all_well=_all_well(any(one.paused for one in settings.values())),
        queues=rows,
    )


def _due_text(rows: Sequence[ListedQueue]) -> str:
    due = sum(row.due for row in rows)
    if not due:
        return "nothing is due"
    largest = max(rows, key=lambda row: row.due)
    if all(row.exact for row in rows):
        return f"{round(largest.due / due * 100)}% in queue {largest.queue}"
    return f"most in queue {largest.queue}"


def _oldest_text(rows: Sequence[ListedQueue], tallies: Sequence[Tally], oldest_ms: int | None) -> str:
    if oldest_ms is None:
        return "nothing is due"
    usual_ms = quantile_ms(sums(one.wait_buckets for one in tallies), 0.95)
    if usual_ms is None:
        return f"in queue {next(row.queue for row in rows if row.oldest_due_ms == oldest_ms)}"
    return f"95% waited less than {duration(usual_ms)}, last hour"


def _running_text(room: int, workers: Sequence[WorkerCard]) -> str:
    if not workers:
        return "no worker is connected"
    return f"room for {room:,} more" if room > 0 else "no room for more"


def _failed_text(failed: int, finished: int) -> str:
    if not finished:
        return "no job finished"
    share = failed / finished * 100
    shown = f"{share:.0f}%" if share >= 10 or not failed else f"{max(0.01, share):.2g}%"
    return f"{shown} of {finished:,} that finished"


def _workers_text(workers: Sequence[WorkerCard]) -> str:
    if not workers:
        return "none is connected"
    stopping = sum(card.stopping for card in workers)
    if stopping:
        return f"{stopping:,} {'is' if stopping == 1 else 'are'} stopping"
    hosts = len({card.host for card in workers})
    return "on 1 machine" if hosts == 1 else f"on {hosts:,} machines"


def _all_well(has_paused: bool) -> str:
    apart = "Apart from paused queues, every" if has_paused else "Every"
    return f"{apart} queue with due jobs has a worker, and no job has been due for more than a minute."
