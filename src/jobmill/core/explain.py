"""Why a job does not run: facts in, reasons out, the most important one first.

Each reason has a code, a sentence with its evidence, and what to do about it. The function is pure: the caller collects
the facts from a store. It does not matter who enqueued the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from jobmill.core.due import BY_LANE, in_lane
from jobmill.core.durations import shown_ms
from jobmill.core.explain_lanes import lane_fine, lane_reasons
from jobmill.core.flows import BY_JOBS
from jobmill.core.job import Job
from jobmill.core.nearest import nearest
from jobmill.core.reasons import AHEAD_SHOWN, MAX_SKEW_MS, RECENT_MS, Facts, Reason, iso_text, span_text


def explain(facts: Facts) -> list[Reason]:
    """The reasons, in order; never empty."""
    job = facts.job
    if job.is_final:
        return [_finished(job)]
    if job.state == "running":
        return [_running(facts), *_skew(facts)]
    reasons = [
        *_held(facts),
        *_unreadable(facts),
        *_not_due(facts),
        *lane_reasons(facts),
        *_paused(facts),
        *_no_worker(facts),
        *_limits(facts),
        *_skew(facts),
    ]
    return reasons or [_in_line(facts)]


def fine(facts: Facts, found: Sequence[Reason]) -> list[str]:
    """What was checked for a waiting job and is no reason: sentences for people. `found` are its reasons."""
    job, settings, depth = facts.job, facts.settings, facts.depth
    codes = {reason.code for reason in found}
    here = [card for card in facts.workers if job.queue in card.queues and not card.stopping]
    ours = [card for card in here if card.system == "jobmill" and job.name in card.names]
    able = len(ours) + sum(card.system != "jobmill" for card in here)
    room = sum(max(0, card.concurrency - card.running) for card in ours)
    limit, rate = settings.running_limit, settings.rate_limit
    running = f"{depth.running} of at most {limit} jobs of the queue run" if limit else "the queue has no running limit"
    rated = f"the rate limit ({rate.count} per {shown_ms(rate.per_ms)}) is not used up" if rate else None
    due = None if job.held else f"the job is due since {iso_text(job.due_ms)}"
    no_worker = {"no_worker", "no_worker_for_queue", "no_worker_for_name", "workers_stopping"}
    checked: tuple[tuple[set[str], str | None], ...] = (
        ({"held", "held_by_person", "held_by_jobs"}, None if job.held else "nothing holds the job"),
        ({"not_due", "retry_backoff", "waits_for_signal"}, due),
        ({"unreadable", "dependency_failed"}, "its payload can be read"),
        *lane_fine(facts),
        ({"queue_paused"}, f"the queue {job.queue} is not paused"),
        (no_worker, f"{able} {'worker' if able == 1 else 'workers'} can run it" if able else None),
        ({"queue_running_limit"}, running),
        ({"queue_rate_limit"}, rated or "the queue has no rate limit"),
        ({"workers_full"}, f"workers have room for {room} more jobs" if room else None),
        ({"store_clock_skew"}, "the clocks of the workers are right" if facts.workers and not _off(facts) else None),
    )
    return [text for of, text in checked if text is not None and not codes & of]


# ---------------------------------------------------------------------------------------------------- not waiting


def _finished(job: Job) -> Reason:
    at = None if job.finished_ms is None else iso_text(job.finished_ms)
    error = f": {job.error}" if job.state == "failed" and job.error else ""
    remedy = None if job.state == "succeeded" else f"run it again: jobmill jobs requeue {job.id}"
    evidence = {"state": job.state, "finished_at": at, "error": job.error, "attempts": job.attempt}
    return Reason(code="finished", text=f"the job has {_ended(job.state)}{error}", evidence=evidence, remedy=remedy)


def _ended(state: str) -> str:
    return "been cancelled" if state == "cancelled" else state


def _running(facts: Facts) -> Reason:
    job = facts.job
    since_ms = facts.now_ms - (facts.now_ms if job.started_ms is None else job.started_ms)
    evidence: dict[str, Any] = {
        "worker": job.worker,
        "running_ms": since_ms,
        "progress": msgspec.to_builtins(job.progress),
        "lease_until_ms": facts.lease_until_ms,
    }
    has_ended = facts.lease_until_ms is not None and facts.lease_until_ms <= facts.now_ms
    owner = next((card for card in facts.workers if card.system == "jobmill" and card.name == job.worker), None)
    if owner is not None and not has_ended:
        text = f"the job runs on worker {job.worker}, for {span_text(since_ms)}"
        if facts.lease_until_ms is not None:
            end, left = iso_text(facts.lease_until_ms), span_text(facts.lease_until_ms - facts.now_ms)
            text += f"; if that worker has died, another one takes the job over at {end}, in {left}"
        return Reason(code="running", text=text, evidence=evidence)
    foreign = [card for card in facts.workers if card.system != "jobmill" and job.queue in card.queues]
    if not has_ended and foreign and (job.worker is None or any(card.name == job.worker for card in foreign)):
        evidence["systems"] = sorted({card.system for card in foreign})
        text = f"the job runs in a worker of another program ({', '.join(evidence['systems'])})"
        return Reason(code="foreign_owner", text=text, evidence=evidence, remedy="look at the workers of that program")
    return _worker_lost(facts, evidence, has_ended)


def _worker_lost(facts: Facts, evidence: dict[str, Any], has_ended: bool) -> Reason:
    job, until_ms = facts.job, facts.lease_until_ms
    worker = f"its worker ({job.worker or 'unknown'})"
    lost = "did not extend its lease" if has_ended else "has not announced itself for 30 s"
    remedy = f"start a worker of the queue {job.queue}, if none runs"
    if until_ms is None:
        again, remedy = "Jobmill does not take it over", "start a worker of the program that has claimed it"
    elif has_ended:
        again = f"since {iso_text(until_ms)} another worker may take it over"
    else:
        again = f"another worker takes it over at {iso_text(until_ms)}, in {span_text(until_ms - facts.now_ms)}"
    text = f"the job is running, but {worker} {lost}; {again}"
    return Reason(code="worker_lost", text=text, evidence=evidence, remedy=remedy)


# ---------------------------------------------------------------------------------------------------- waiting


def _held(facts: Facts) -> Iterator[Reason]:
    held = facts.job.held
    if held is None:
        return
    if "person" in held.by:
        by = held.who or "a person"
        text = f"{by} holds the job back" + (f": {held.note}" if held.note else "")
        remedy = f"release it: jobmill jobs release {facts.job.id}"
        evidence = {"who": held.who, "note": held.note}
        yield Reason(code="held_by_person", text=text, evidence=evidence, remedy=remedy)
    if BY_JOBS in held.by:
        yield _held_by_jobs(facts)
    # The lane has reasons of its own, and concerns a job only if nothing else holds it.
    others = [one for one in held.by if one not in ("person", BY_JOBS, BY_LANE)]
    if others:
        text = f"the job is held by {' and '.join(f'its {one}' for one in others)}"
        yield Reason(code="held", text=text, evidence={"by": others})


def _held_by_jobs(facts: Facts) -> Reason:
    shown = [f"{one.name} ({one.id}) is {one.state}" for one in facts.dependencies]
    text = "the job waits for jobs that have not ended" + (f": {', '.join(shown)}" if shown else "")
    pending = [{"id": one.id, "name": one.name, "state": one.state, "queue": one.queue} for one in facts.dependencies]
    waiting = next((one for one in facts.dependencies if one.state == "waiting"), None)
    remedy = None if waiting is None else f"see why that job waits: jobmill jobs why {waiting.id}"
    return Reason(code="held_by_jobs", text=text, evidence={"dependencies": pending}, remedy=remedy)


def _unreadable(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    why = job.deferred_error
    if why is not None and job.dependencies:
        text = f"the next worker that claims the job will fail it: {why}"
        remedy = f"retry the flow, and both run again: jobmill flows retry {job.flow}" if job.flow else None
        yield Reason(code="dependency_failed", text=text, evidence={"why": why, "flow": job.flow}, remedy=remedy)
        return
    if why is None:
        try:
            msgspec.json.decode(job.payload_json)
        except (ValueError, RecursionError) as error:
            why = f"payload: {error}"
    if why is not None:
        text = f"the next worker that claims the job will fail it: {why}"
        remedy = f"remove it and enqueue it again: jobmill jobs remove {job.id}"
        yield Reason(code="unreadable", text=text, evidence={"why": why}, remedy=remedy)


def _not_due(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    # A lane holds a job that is due later, too.
    due_ms = job.held.due.resolve(facts.now_ms) if job.held is not None and in_lane(job.held) else job.due_ms
    if (job.held is not None and not in_lane(job.held)) or due_ms <= facts.now_ms:
        return
    due_at, wait = iso_text(due_ms), span_text(due_ms - facts.now_ms)
    evidence: dict[str, Any] = {"due_at": due_at}
    if job.waits_for is not None:
        text = f"the job waits for the signal {job.waits_for!r}, at most until {due_at}"
        remedy = f"send it: jobs.signal({job.id!r}, {job.waits_for!r}, value)"
        evidence["signal"] = job.waits_for
        yield Reason(code="waits_for_signal", text=text, evidence=evidence, remedy=remedy)
        return
    remedy = f"run it now: jobmill jobs reschedule {job.id} --delay 0"
    if job.errors and job.error is not None:
        evidence |= {"attempt": job.attempt, "error": job.error, "error_type": job.error_type}
        text = f"attempt {job.errors} failed ({job.error}); attempt {job.attempt} is due in {wait}, at {due_at}"
        yield Reason(code="retry_backoff", text=text, evidence=evidence, remedy=remedy)
        return
    what = "its next occurrence" if job.recurrence is not None else "the job"
    yield Reason(code="not_due", text=f"{what} is due in {wait}, at {due_at}", evidence=evidence, remedy=remedy)


def _paused(facts: Facts) -> Iterator[Reason]:
    settings = facts.settings.at(facts.now_ms)
    if not settings.paused:
        return
    pause, queue = settings.pause, facts.job.queue
    text = f"the queue {queue} is paused"
    evidence: dict[str, Any] = {"queue": queue}
    if pause is not None:
        text += f" by {pause.who}" if pause.who else ""
        text += f" since {iso_text(pause.since_ms)}" if pause.since_ms is not None else ""
        text += f" until {iso_text(pause.until_ms)}" if pause.until_ms is not None else ""
        text += f": {pause.note}" if pause.note else ""
        evidence |= msgspec.to_builtins(pause)
    yield Reason(code="queue_paused", text=text, evidence=evidence, remedy=f"resume it: jobmill queues resume {queue}")


def _no_worker(facts: Facts) -> Iterator[Reason]:
    """Whether a worker can claim the job at all. Workers of other programs do not say which names they handle."""
    job = facts.job
    if any(card.system != "jobmill" and job.queue in card.queues for card in facts.workers):
        return
    ours = [card for card in facts.workers if card.system == "jobmill"]
    if not ours:
        remedy = "start one: jobmill worker app.py:jobs"
        text = "no worker has announced itself in the last 30 s"
        yield Reason(code="no_worker", text=text, evidence={}, remedy=remedy)
        return
    of_queue = [card for card in ours if job.queue in card.queues]
    if not of_queue:
        served = sorted({queue for card in ours for queue in card.queues})
        text = f"no worker claims from the queue {job.queue}; the workers that run claim from {', '.join(served)}"
        remedy = f"start a worker with --queue {job.queue}"
        yield Reason(code="no_worker_for_queue", text=text, evidence={"queues": served}, remedy=remedy)
        return
    able = [card for card in of_queue if job.name in card.names]
    if not able:
        known = sorted({name for card in of_queue for name in card.names})
        near = nearest(job.name, known)
        hint = f"; the nearest name that they know is {near!r}" if near else ""
        text = f"no worker of the queue {job.queue} has a handler named {job.name!r}{hint}"
        evidence = {"names": known, "nearest": near}
        remedy = "deploy a worker with this handler, or remove the job"
        yield Reason(code="no_worker_for_name", text=text, evidence=evidence, remedy=remedy)
        return
    if all(card.stopping for card in able):
        names = [card.name for card in able]
        text = f"all workers that can run it are stopping: {', '.join(names)}"
        yield Reason(code="workers_stopping", text=text, evidence={"workers": names}, remedy="start a worker")


def _limits(facts: Facts) -> Iterator[Reason]:
    job, settings, depth = facts.job, facts.settings, facts.depth
    limit = settings.running_limit
    if limit is not None and depth.running >= limit:
        ids = [one.id for one in facts.running]
        text = f"{depth.running} jobs of the queue {job.queue} run, and its limit is {limit}"
        remedy = f"raise it: jobmill queues limits {job.queue} --running {limit * 2}"
        evidence = {"running": depth.running, "limit": limit, "longest": ids}
        yield Reason(code="queue_running_limit", text=text, evidence=evidence, remedy=remedy)
    if depth.limited_until_ms is not None and settings.rate_limit is not None:
        rate = settings.rate_limit
        until = iso_text(depth.limited_until_ms)
        text = f"the rate limit of the queue ({rate.count} per {shown_ms(rate.per_ms)}) is used up until {until}"
        evidence = {"until": until, "count": rate.count, "per_ms": rate.per_ms}
        yield Reason(code="queue_rate_limit", text=text, evidence=evidence)
    able = [card for card in facts.workers if job.queue in card.queues and job.name in card.names and not card.stopping]
    if able and all(card.running >= card.concurrency for card in able):
        running, room = sum(card.running for card in able), sum(card.concurrency for card in able)
        longest = [{"id": one.id, "name": one.name, "worker": one.worker} for one in facts.running]
        text = f"all workers that can run it have reached their concurrency: they run {running} of at most {room} jobs"
        remedy = "start more workers, or look at the jobs that run longest"
        evidence = {"running": running, "concurrency": room, "longest": longest}
        yield Reason(code="workers_full", text=text, evidence=evidence, remedy=remedy)


def _skew(facts: Facts) -> Iterator[Reason]:
    off = _off(facts)
    if off and facts.job.due_ms <= facts.now_ms:
        worst = max(off.items(), key=lambda one: abs(one[1]))
        text = f"the clock of worker {worst[0]} differs from the clock of the store by {span_text(abs(worst[1]))}"
        remedy = "set the clocks of the workers by NTP"
        yield Reason(code="store_clock_skew", text=text, evidence={"skew_ms": off}, remedy=remedy)


def _off(facts: Facts) -> dict[str, int]:
    return {card.name: card.clock_skew_ms for card in facts.workers if abs(card.clock_skew_ms) > MAX_SKEW_MS}


def _in_line(facts: Facts) -> Reason:
    job, ahead = facts.job, facts.ahead
    if not ahead:
        return Reason(code="ready", text="nothing keeps the job from running: a worker will claim it in a moment")
    count = f"{ahead} or more" if ahead >= AHEAD_SHOWN else str(ahead)
    evidence: dict[str, Any] = {"ahead": ahead, "priority": job.priority, "claimed_recently": facts.claimed_recently}
    text = f"{count} jobs of the queue {job.queue} come before it"
    if facts.claimed_recently:
        wait_ms = ahead * RECENT_MS // facts.claimed_recently
        evidence["estimate_ms"] = wait_ms
        text += f"; at the speed of the last {shown_ms(RECENT_MS)} that takes about {span_text(wait_ms)}"
    remedy = f"start more workers, or give it a smaller priority: jobmill jobs reprioritize {job.id} --priority 0"
    return Reason(code="behind", text=text, evidence=evidence, remedy=remedy)
