"""Durable runs: suspensions, and the verbs record_step, recorded and signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core.changes import Hold, Patch, Reschedule, decide
from jobmill.core.events import settlement_events
from jobmill.core.flows import BY_JOBS, After, Recorded, Signal, Signalled, Step
from jobmill.core.job import LIVE
from jobmill.core.values import NOW, Lease, Refused, Settled
from jobmill.errors import InvalidValue
from jobmill.stores.sqlite.codec import SubjectRow, patched_columns, settlement_row, subject_of
from jobmill.stores.sqlite.context import NeedsCare, SqliteContext
from jobmill.stores.sqlite.enqueue import enqueue
from jobmill.stores.sqlite.feed import publish
from jobmill.stores.sqlite.flows import EdgesOfJob, add_edges, refuse_circle
from jobmill.stores.sqlite.lanes import change_lanes_of, give_up_slots
from jobmill.stores.sqlite.leases import held, locate

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def suspend(context: SqliteContext, done: Settlement) -> Settled:
    """Settle a run that was suspended. If it cannot wait for its children, all that was written is undone."""
    context.cursor.execute("SAVEPOINT jobmill_suspend")
    try:
        row = settlement_row(done, locate(context, done.lease), context.now_ms)
        if context.write_rows("settle", (context.now_ms,), [row]) != 1:
            raise NeedsCare
        if done.lease.lane is not None:
            give_up_slots(context, [(locate(context, done.lease), done)])
        _wait(context, done)
        publish(context, settlement_events(done, context.now_ms))
        context.wakes += 1
    except InvalidValue as error:
        context.cursor.execute("ROLLBACK TO jobmill_suspend")
        context.queue_rows = None
        return Refused(str(error))
    finally:
        context.cursor.execute("RELEASE jobmill_suspend")
    return "done"


def _wait(context: SqliteContext, done: Settlement) -> None:
    """Enqueue the children and hold the job until they have ended; or wait for a signal."""
    row: SubjectRow = context.row("subject", (done.lease.id,))
    seq, edges = row[0], row[-1] or 0
    if done.children:
        receipts = enqueue(context, done.children)
        _apply(context, row, Hold(by=BY_JOBS))
        context.update_job(seq, {"dependencies": edges + len(receipts)})
        add_edges(context, [EdgesOfJob(seq, edges, [After(receipt.id, "run") for receipt in receipts])])
        if not all(receipt.created for receipt in receipts) or any(child.after for child in done.children):
            refuse_circle(context, seq, done.lease.id)
    if done.waits_for is not None and context.row("has_signal", (seq, done.waits_for)):
        _apply(context, row, Reschedule(NOW))


def record_step(context: SqliteContext, lease: Lease, step: Step) -> bool:
    """Store a step, if the lease still owns the job."""
    if not held(context, [lease]):
        return False
    result = step.result_json.decode()
    context.write("add_step", (locate(context, lease), step.number, step.name, step.error, result))
    return True


def recorded(context: SqliteContext, id: str) -> Recorded:
    """The steps and signals of a job."""
    steps = [
        Step(number=number, name=name, result_json=result.encode(), error=error)
        for number, name, result, error in context.rows("steps", (id,))
    ]
    return Recorded(
        steps, [Signal(name=name, value_json=value.encode()) for name, value in context.rows("signals", (id,))]
    )


def signal(context: SqliteContext, id: str, signal: Signal) -> Signalled:
    """Store a signal; the job is due if it waits for it."""
    row: SubjectRow | None = context.row("subject", (id,))
    if row is None:
        return "unknown"
    seq, state = row[0], row[4]
    if state not in LIVE:
        return "final"
    if not context.write("add_signal", (seq, signal.name, signal.value_json.decode())):
        return "exists"
    if context.row("waits_for", (seq,)) == (signal.name,):
        _apply(context, row, Reschedule(NOW))
        context.wakes += 1
    return "stored"


def _apply(context: SqliteContext, row: SubjectRow, change: Hold | Reschedule) -> None:
    patch = decide(change, subject_of(row), context.now_ms)
    if isinstance(patch, Patch):
        context.update_job(row[0], patched_columns(patch, context.now_ms))
        if patch.fields.get("held") is not None:
            change_lanes_of(context, [row[0]])
