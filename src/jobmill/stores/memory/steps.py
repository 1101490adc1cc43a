"""Durable runs: suspensions, and the verbs record_step, recorded and signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core.changes import Hold, Patch, Reschedule, Subject, decide
from jobmill.core.flows import BY_JOBS, After, Recorded, Signal, Signalled, Step
from jobmill.core.values import NOW, Lease
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.enqueue import enqueue
from jobmill.stores.memory.flows import add_edges
from jobmill.stores.memory.job_table import StoredJob

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def suspend(context: MemoryContext, stored: StoredJob, done: Settlement) -> None:
    """A run was suspended: enqueue its children and hold the job until they have ended; or wait for a signal."""
    if done.children:
        receipts = enqueue(context, done.children)
        _apply(context, stored, Hold(by=BY_JOBS))
        add_edges(context, stored, [After(receipt.id, "run") for receipt in receipts])
    if done.waits_for is not None and done.waits_for in context.signals.get(stored.job.id, ()):
        _apply(context, stored, Reschedule(NOW))


def record_step(context: MemoryContext, lease: Lease, step: Step) -> bool:
    """Store a step, if the lease still owns the job."""
    if context.jobs.held(lease, context.now_ms) is None:
        return False
    context.steps.setdefault(lease.id, {}).setdefault(step.number, step)
    return True


def recorded(context: MemoryContext, id: str) -> Recorded:
    """The steps and signals of a job."""
    steps = context.steps.get(id, {})
    return Recorded([steps[number] for number in sorted(steps)], list(context.signals.get(id, {}).values()))


def signal(context: MemoryContext, id: str, signal: Signal) -> Signalled:
    """Store a signal; the job is due if it waits for it."""
    stored = context.jobs.by_id.get(id)
    if stored is None:
        return "unknown"
    if stored.job.is_final:
        return "final"
    signals = context.signals.setdefault(id, {})
    if signal.name in signals:
        return "exists"
    signals[signal.name] = signal
    if stored.job.state == "waiting" and stored.job.waits_for == signal.name:
        _apply(context, stored, Reschedule(NOW))
        context.wakes = True
    return "stored"


def _apply(context: MemoryContext, stored: StoredJob, change: Hold | Reschedule) -> None:
    patch = decide(change, Subject.of(stored.job), context.now_ms)
    if isinstance(patch, Patch):
        context.jobs.write(stored, **patch.fields)
