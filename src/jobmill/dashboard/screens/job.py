"""One job: its facts, why it waits, its attempts, log lines, payload and result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, structs

from jobmill.core.due import in_lane
from jobmill.core.explain import explain, fine
from jobmill.core.job import LIVE, Job, keep_final
from jobmill.core.lifecycle import policy
from jobmill.core.limits import shown_limit
from jobmill.core.reasons import AHEAD_SHOWN, RUNNING_SHOWN, SLOTS_SHOWN, Facts, LaneFacts, Reason
from jobmill.core.tallies import Tally
from jobmill.core.values import Depth, Filter, Lane, LogLine, Page, QueueSettings
from jobmill.dashboard.timeline import BarPart, Shape, TimelineEntry, bar, state_of, steps, time_spent
from jobmill.dashboard.view import View

#: Lines of the log on the page.
LINES_SHOWN: Final = 500
RECENT_MS: Final = 5 * 60_000
#: With these reasons the position in the queue matters, with those the jobs that run.
_IN_LINE: Final = {"ready", "behind"}
_FULL: Final = {"queue_running_limit", "workers_full"}
#: Without depths, nobody knows whether these are reasons.
_NOT_CHECKED: Final = (Reason(code="queue_running_limit", text=""), Reason(code="queue_rate_limit", text=""))


class JobScreen(Struct, frozen=True, kw_only=True):
    """One job. `job` is as `jobmill jobs show --json` prints it, without what the visitor may not see."""

    job: dict[str, Any]
    shape: Shape
    word: str
    #: None if only the worker knows it.
    max_attempts: int | None
    #: How many values of the payload are hidden.
    hidden: int
    #: Why it does not run, in order; empty if there is nothing to say.
    reasons: list[Reason]
    #: What was checked and is no reason, as sentences.
    fine: list[str]
    steps: list[TimelineEntry]
    bar: list[BarPart]
    #: A sentence about the time of the job; None if nothing can be said.
    spent: str | None
    #: The last log lines; None if they were not read.
    log: list[LogLine] | None
    kept_until_ms: int | None
    #: Milliseconds that the times of the job have as texts in `job`.
    times: dict[str, int | None]
    #: The acts that are possible now and allowed to the visitor.
    acts: list[str]
    snippet: str


async def job(view: View) -> JobScreen:
    """One job and what concerns it."""
    found = await view.job(view.request.path_params["id"])
    may_see = view.can("see_payload")
    reads_log = found.state != "waiting" or view.param("log") is not None
    (reasons, is_fine), log = await asyncio.gather(_reasons(view, found, may_see=may_see), _log(view, found, reads_log))
    shape, word = state_of(found, view.now_ms)
    document = view.document(found)
    max_attempts = _max_attempts(view, found)
    return JobScreen(
        job=document,
        shape=shape,
        word=word,
        max_attempts=max_attempts,
        hidden=view.hidden_count(found) if may_see else _leaves(found.to_dict()["payload"]),
        reasons=reasons,
        fine=is_fine,
        steps=steps(found, view.now_ms, max_attempts),
        bar=bar(found, view.now_ms),
        spent=time_spent(found, view.now_ms),
        log=log,
        kept_until_ms=_kept_until(found),
        times={
            "created": found.created_ms,
            "due": None if found.due_at is None else int(found.due_at.timestamp() * 1000),
            "started": found.started_ms,
            "finished": found.finished_ms,
        },
        acts=[act for act in _possible(found) if view.can("edit" if act == "copy" else act)],
        snippet=_snippet(found, document["payload"]),
    )


async def _log(view: View, job: Job, reads: bool) -> list[LogLine] | None:
    if not reads:
        return None if job.claims else []
    if not view.can("see_payload"):
        return []
    return await view.reads.logs(job.id, LINES_SHOWN)


async def _reasons(view: View, job: Job, *, may_see: bool) -> tuple[list[Reason], list[str]]:
    """Why a job does not run, and what is fine.

    The order of the queue and its running jobs are read only where they are the reason.
    """
    if job.is_final:
        return [], []
    reads = view.reads
    if job.state == "running":
        workers, until_ms = await asyncio.gather(reads.workers(), reads.lease_end(job.id))
        depth = Depth(queue=job.queue)
        facts = Facts(job=job, now_ms=view.now_ms, depth=depth, workers=workers, lease_until_ms=until_ms)
        found = explain(facts)
        return [] if found[0].code == "running" else found, []
    if in_lane(job.held):
        return await _lane_reasons(view, job, may_see=may_see)
    depths, workers, settings = await asyncio.gather(reads.depths(), reads.workers(), reads.settings())
    depth = _depth(depths, job.queue)
    facts = Facts(
        job=job,
        now_ms=view.now_ms,
        settings=settings.get(job.queue, QueueSettings()),
        depth=depth,
        workers=workers,
        claimed_recently=_claimed(view, job.queue),
    )
    found = explain(facts)
    # A page makes at most five queries. Four are made; with `log`, the fifth is for the log lines.
    codes = {one.code for one in found} if view.param("log") is None else set()
    if codes & _IN_LINE:
        line = await reads.find(Filter(queue=job.queue, states=("waiting",)), limit=AHEAD_SHOWN)
        ids = [one.id for one in line.jobs]
        found = explain(structs.replace(facts, ahead=ids.index(job.id) if job.id in ids else len(ids)))
    elif codes & _FULL:
        tenant = None if view.access.tenants is None else job.tenant
        wanted = Filter(queue=job.queue, states=("running",), tenant=tenant)
        longest = await reads.find(wanted, limit=RUNNING_SHOWN)
        found = explain(structs.replace(facts, running=longest.jobs))
    return found if may_see else [_without_error(one) for one in found], fine(facts, found)


async def _lane_reasons(view: View, job: Job, *, may_see: bool) -> tuple[list[Reason], list[str]]:
    """Why a job waits for a slot of its lane. Its lane, and the jobs that have the slots, are read instead of depths.

    A visitor who may see some tenants only learns nothing about single jobs of others.
    """
    reads, name = view.reads, job.lane or ""
    tenant = None if view.access.tenants is None else job.tenant
    wanted = Filter(queue=job.queue, lane=name, states=LIVE, held=False, tenant=tenant)
    workers, settings, lanes, holders = await asyncio.gather(
        reads.workers(),
        reads.settings(),
        reads.lanes(job.queue, [name], None, 1),
        # With `log`, the fifth query is for the log lines.
        reads.find(wanted, limit=SLOTS_SHOWN) if view.param("log") is None else _no_jobs(),
    )
    lane = lanes[0] if lanes else Lane(queue=job.queue, name=name)
    slots = sorted(holders.jobs, key=lambda one: one.state != "running")
    depths: list[Depth] | None = reads.known("depths")
    facts = Facts(
        job=job,
        now_ms=view.now_ms,
        settings=settings.get(job.queue, QueueSettings()),
        depth=_depth(depths or [], job.queue),
        workers=workers,
        lane=LaneFacts(lane=lane, holders=[one if may_see else structs.replace(one, error=None) for one in slots]),
    )
    found = explain(facts)
    shown = found if may_see else [_without_error(one) for one in found]
    return shown, fine(facts, found if depths is not None else [*found, *_NOT_CHECKED])


async def _no_jobs() -> Page:
    return Page([])


def _depth(depths: Sequence[Depth], queue: str) -> Depth:
    return next((one for one in depths if one.queue == queue), Depth(queue=queue))


def _claimed(view: View, queue: str) -> int:
    """How many jobs of the queue were claimed in the last minutes, if other reads know it."""
    known: list[Tally] = view.reads.known("hour") or []
    since_ms = view.now_ms - RECENT_MS
    return sum(one.claimed for one in known if one.queue == queue and one.start_ms >= since_ms)


def _without_error(reason: Reason) -> Reason:
    """A visitor who may not see payloads does not see the texts of errors either."""
    if reason.evidence.get("error") is None and "why" not in reason.evidence:
        return reason
    evidence = {key: value for key, value in reason.evidence.items() if key not in ("error", "why")}
    text = "an attempt failed, and the next one is due later" if "error" in reason.evidence else "it cannot be read"
    return structs.replace(reason, text=text, evidence=evidence)


def _max_attempts(view: View, job: Job) -> int | None:
    """The limit of the job, else that of its handler, if this process knows the handler."""
    handler = view.jobs.handlers.get(job.name)
    if handler is None:
        return shown_limit(job.options.max_attempts)
    return shown_limit(policy(job.options, handler.policy).max_attempts)


def _kept_until(job: Job) -> int | None:
    if job.finished_ms is None:
        return None
    age_ms = keep_final(job.options, job.state).age_ms
    return None if age_ms is None else job.finished_ms + age_ms


def _possible(job: Job) -> tuple[str, ...]:
    match job.state:
        case "waiting":
            person = job.held is not None and "person" in job.held.by
            return ("cancel", "reschedule", "reprioritize", "release" if person else "hold", "copy", "remove")
        case "running":
            return ("cancel", "copy")
        case _:
            return ("requeue", "copy", "remove")


def _leaves(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_leaves(one) for one in value.values())
    return sum(_leaves(one) for one in value) if isinstance(value, list) else int(value is not None)


def _snippet(job: Job, payload: Any) -> str:
    """Python that enqueues the same job."""
    options = f", queue={job.queue!r}" if job.queue != "default" else ""
    options += f", priority={job.priority}" if job.priority else ""
    options += f", tenant={job.tenant!r}" if job.tenant else ""
    options += f", lane={job.lane!r}" if job.lane else ""
    return f"await jobs.enqueue({job.name!r}, {payload!r}{options})"
