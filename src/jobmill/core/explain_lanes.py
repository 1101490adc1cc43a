"""Why a job waits for a slot of its lane. `jobmill.core.lanes` has the rules of lanes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from jobmill.core.due import BY_LANE, in_lane
from jobmill.core.durations import shown_ms
from jobmill.core.job import Job
from jobmill.core.lanes import LaneLimits
from jobmill.core.reasons import Facts, LaneFacts, Reason, iso_text, span_text


def lane_reasons(facts: Facts) -> Iterator[Reason]:
    """The reasons why the lane of a job gives it no slot, in the order in which a lane checks them."""
    job, known = facts.job, facts.lane
    if job.held is None or not in_lane(job.held):
        return
    is_ready = job.held.due.resolve(facts.now_ms) <= facts.now_ms
    found = [] if known is None else [*_paused(job, known), *(_full(facts, known) if is_ready else ())]
    if not found and is_ready:
        text = f"the job waits for a slot of its lane {job.lane!r}"
        if known is not None:
            text += ", which has room: a worker gives it one within seconds"
        yield Reason(code="held", text=text, evidence={"by": [BY_LANE]})
    yield from found


def lane_fine(facts: Facts) -> list[tuple[set[str], str | None]]:
    """What was checked about the lane, as `fine` needs it. A job that has its slot needs nothing else of its lane."""
    job, known = facts.job, facts.lane
    if job.lane is None:
        return []
    full = {"lane_blocked_by_name", "lane_strict", "lane_full"}
    if job.held is None:
        return [(full, f"its lane {job.lane!r} has given it a slot")]
    if known is None or not in_lane(job.held):
        return []
    lane, limits = known.lane, LaneLimits.of(facts.settings.lanes, known.lane.settings)
    used = f"{lane.running + lane.admitted} of at most {limits.running} jobs of its lane have a slot"
    return [
        ({"lane_paused"}, f"its lane {job.lane!r} is not paused"),
        (full, used if limits.running else "its lane has no running limit"),
        ({"lane_rate"}, "the rate of its lane is not used up" if limits.rate else "its lane has no rate"),
    ]


def _paused(job: Job, known: LaneFacts) -> Iterator[Reason]:
    pause = known.lane.settings.pause
    if pause is None:
        return
    text = f"the lane {job.lane!r} is paused"
    text += f" by {pause.who}" if pause.who else ""
    text += f" since {iso_text(pause.since_ms)}" if pause.since_ms is not None else ""
    text += f": {pause.note}" if pause.note else ""
    evidence = {"lane": job.lane, **msgspec.to_builtins(pause)}
    yield Reason(code="lane_paused", text=text, evidence=evidence, remedy=f"resume it: {_command(job, '--resume')}")


def _full(facts: Facts, known: LaneFacts) -> Iterator[Reason]:
    job, lane = facts.job, known.lane
    limits = LaneLimits.of(facts.settings.lanes, lane.settings)
    if limits.paused:
        return
    slots = lane.running + lane.admitted
    if limits.running is not None and slots >= limits.running:
        waiting = [one for one in known.holders if one.state == "waiting"]
        retrying = [one for one in waiting if one.due_ms > facts.now_ms]
        blocked = [one for one in waiting if one.due_ms <= facts.now_ms and _has_no_worker(facts, one)]
        # The first of each kind, as a reason that a person can act on.
        yield from (_blocked_by_name(facts, one) for one in blocked[:1])
        yield from (_strict(facts, one) for one in retrying[:1])
        if slots > len(blocked) + len(retrying):
            yield _used_up(facts, known, limits)
    until_ms = lane.limited_until_ms
    if limits.rate is not None and until_ms is not None and until_ms > facts.now_ms:
        until, rate = iso_text(until_ms), limits.rate
        text = f"the rate of its lane {job.lane!r} ({rate.count} per {shown_ms(rate.per_ms)}) is used up until {until}"
        text += _before(known)
        evidence = {"lane": job.lane, "until": until, "count": rate.count, "per_ms": rate.per_ms, "ahead": known.ahead}
        yield Reason(code="lane_rate", text=text, evidence=evidence)


def _used_up(facts: Facts, known: LaneFacts, limits: LaneLimits) -> Reason:
    job, lane, limit = facts.job, known.lane, limits.running or 0
    text = f"its lane {job.lane!r} has used its limit of {limit}: {lane.running} running, {lane.admitted} admitted"
    text += _before(known)
    evidence: dict[str, Any] = {"lane": job.lane, "limit": limit, "running": lane.running, "admitted": lane.admitted}
    evidence |= {"ahead": known.ahead, "jobs": [one.id for one in known.holders[:5]]}
    # A higher limit would end the order of a strict lane, and does not help where all slots wait for a worker.
    remedy = None if limits.strict or not lane.running else f"raise it: {_command(job, f'--running {limit * 2}')}"
    return Reason(code="lane_full", text=text, evidence=evidence, remedy=remedy)


def _strict(facts: Facts, other: Job) -> Reason:
    job, due_at = facts.job, iso_text(other.due_ms)
    wait = span_text(other.due_ms - facts.now_ms)
    why = f" ({other.error})" if other.error else ""
    text = f"its lane {job.lane!r} is strict, and job {other.id} keeps its slot{why} until its next attempt"
    text += f", which is due in {wait}, at {due_at}"
    evidence = {"lane": job.lane, "job": other.id, "due_at": due_at, "attempt": other.attempt, "error": other.error}
    remedy = f"wait for that job, or cancel it: jobmill jobs cancel {other.id}"
    return Reason(code="lane_strict", text=text, evidence=evidence, remedy=remedy)


def _blocked_by_name(facts: Facts, other: Job) -> Reason:
    job = facts.job
    text = f"job {other.id} has a slot of its lane {job.lane!r}"
    text += f", but no worker of the queue {job.queue} has a handler named {other.name!r}"
    known = sorted({name for card in facts.workers if job.queue in card.queues for name in card.names})
    evidence = {"lane": job.lane, "job": other.id, "name": other.name, "names": known}
    remedy = f"deploy a worker with this handler, or remove that job: jobmill jobs remove {other.id}"
    return Reason(code="lane_blocked_by_name", text=text, evidence=evidence, remedy=remedy)


def _has_no_worker(facts: Facts, other: Job) -> bool:
    """Whether workers of the queue run, and none has a handler for this job. Other programs do not name theirs."""
    here = [card for card in facts.workers if other.queue in card.queues]
    is_known = all(card.system == "jobmill" for card in here)
    return bool(here) and is_known and not any(other.name in card.names for card in here)


def _before(known: LaneFacts) -> str:
    return f"; {known.ahead} more before this job" if known.ahead else ""


def _command(job: Job, option: str) -> str:
    place = f"{job.queue} {shlex.quote(job.lane or '')}"
    is_like_option = job.queue.startswith("-") or (job.lane or "").startswith("-")
    return f"jobmill queues lane {option} -- {place}" if is_like_option else f"jobmill queues lane {place} {option}"
