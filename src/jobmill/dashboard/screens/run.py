"""One act on all jobs that match: how far it is, or what it has done."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from jobmill.dashboard.refusals import RefusalGroup
from jobmill.dashboard.runs import BulkRun, RunStatus
from jobmill.dashboard.selection import jobs_text, words_for
from jobmill.dashboard.view import View

#: The state whose shape and color a run has.
SHAPES: Final[dict[RunStatus, str]] = {
    "running": "running",
    "stopping": "held",
    "done": "succeeded",
    "stopped": "cancelled",
    "failed": "failed",
}


class RunScreen(Struct, frozen=True, kw_only=True):
    """A run. `total` is how many jobs there were at its start; None while they are counted."""

    id: str
    act: str
    title: str
    status: RunStatus
    shape: str
    is_over: bool
    text: str
    details: list[str]
    q: str
    chips: list[str]
    state: str
    who: str
    note: str | None
    total: int | None
    done: int
    refused: list[RefusalGroup]
    spread_ms: int
    started_ms: int
    ended_ms: int | None
    can_stop: bool


async def run(view: View) -> RunScreen:
    """The run with the id in the path."""
    run = view.run(view.request.path_params["id"])
    order, refused = run.order, run.refused.groups
    return RunScreen(
        id=run.id,
        act=order.act,
        title=f"{words_for(order.act).wanted} {jobs_text(run.total, order.state)}",
        status=run.status,
        shape=SHAPES[run.status],
        is_over=run.is_over,
        text=_text(run),
        details=[*_problems(run), *(group.sentence for group in refused)],
        q=order.q,
        chips=order.chips,
        state=order.state,
        who=order.who,
        note=order.note,
        total=run.total,
        done=run.done,
        refused=refused,
        spread_ms=order.spread_ms,
        started_ms=run.started_ms,
        ended_ms=run.ended_ms,
        can_stop=run.status == "running" and view.can(order.act),
    )


def _text(run: BulkRun) -> str:
    if run.total is None and not run.is_over:
        return "The dashboard counts the jobs that match."
    done = words_for(run.order.act).done
    jobs = "1 job was" if run.done == 1 else f"{run.done:,} jobs were"
    of = "" if run.total is None else f" of {run.total:,}"
    match run.status:
        case "running":
            return f"{run.done:,}{of} jobs {done} so far."
        case "stopping":
            return f"{run.done:,}{of} jobs {done}. The run stops after the present batch."
        case "done":
            return f"{run.done:,}{of} jobs were {done}." if run.refused.count else f"{jobs} {done}."
        case "stopped":
            return f"Stopped by {run.stopped_by}: {run.done:,}{of} jobs were {done}. The other jobs were not changed."
        case "failed":
            return f"The run ended early: {run.done:,}{of} jobs were {done}. The other jobs were not changed."


def _problems(run: BulkRun) -> list[str]:
    found = list[str]()
    if run.problem is not None:
        found.append(run.problem if run.is_over else f"{run.problem} The dashboard tries again.")
    if run.unanswered and run.is_over:
        calls = "1 call" if run.unanswered == 1 else f"{run.unanswered:,} calls"
        found.append(f"The store did not answer {calls}. It may have changed jobs that are not counted here.")
    return found
