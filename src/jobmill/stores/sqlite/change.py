"""The verb change: cancel, requeue, reschedule, reprioritize, remove and seize without a lease."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Changed, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.events import EventType, bare_job, claim_events, job_event
from jobmill.core.job import State, keep_cancelled
from jobmill.core.values import Filter
from jobmill.stores.sqlite.filters import conditions
from jobmill.stores.sqlite.queues import tell
from jobmill.stores.sqlite.statements import sql
from jobmill.stores.sqlite.context import Context

_encode = msgspec.json.Encoder().encode

# What a change is about: seq, id, name, queue, state, errors, options.
Row = tuple[int, str, str, str, State, int, str | None]


def change(context: Context, which: Sequence[str] | Filter, wanted: Change, limit: int) -> Changed:
    """Change jobs by id, or those that match; at most `limit`."""
    allowed = CHANGES_FROM[type(wanted)]
    changed: list[str] = []
    refused: dict[str, str] = {}
    if isinstance(which, Filter):
        rows, more = _by_filter(context, which, allowed, limit)
    else:
        ids = list(dict.fromkeys(which))
        rows, more = _by_id(context, ids[:limit], refused), len(ids) > limit
    for row in rows:
        why = f"the job is {row[4]}" if row[4] not in allowed else _change_one(context, row, wanted, len(changed))
        if why is None:
            changed.append(row[1])
        else:
            refused[row[1]] = why
    context.wakes += bool(changed)
    return Changed(changed=changed, refused=refused, more=more)


def _by_id(context: Context, ids: Sequence[str], refused: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    for id in ids:
        row = context.row("change_row", (id,))
        if row is None:
            refused[id] = "there is no such job"
        else:
            rows.append(row)
    return rows


def _by_filter(context: Context, filter: Filter, allowed: Sequence[State], limit: int) -> tuple[list[Row], bool]:
    where, parameters = conditions(filter, allowed)
    statement = sql("change_rows").replace("{conditions}", where)
    rows = context.cursor.execute(statement, (*parameters, limit + 1)).fetchall()
    return rows[:limit], len(rows) > limit


def _change_one(context: Context, row: Row, wanted: Change, index: int) -> str | None:
    """Do it, or say why not."""
    seq = row[0]
    match wanted:
        case Cancel():
            _cancel(context, row)
        case Requeue():
            return _requeue(context, row, wanted, index)
        case Reschedule():
            context.write("reschedule", (seq, context.now_ms, wanted.due.resolve(context.now_ms)))
        case Reprioritize():
            context.write("reprioritize", (seq, context.now_ms, wanted.priority))
        case Remove():
            remove(context, [row])
        case Seize():
            _seize(context, row, wanted)
    return None


def _cancel(context: Context, row: Row) -> None:
    keep = keep_cancelled(row[6])
    context.write("cancel", (row[0], context.now_ms, keep.age_ms, keep.last))
    _tell(context, row, "cancelled", "cancelled")
    if keep.at_once:
        remove(context, [(*row[:4], "cancelled", row[5], row[6])])


def _seize(context: Context, row: Row, wanted: Seize) -> None:
    seq, id, name, queue, _, errors, _ = row
    context.write("seize", (seq, context.now_ms, wanted.token, context.now_ms + wanted.lease_ms, wanted.worker))
    job = bare_job(id, name, queue, "running", errors, wanted.worker)
    tell(context, queue, lambda: claim_events(job, context.now_ms, lease_lost=False))


def _requeue(context: Context, row: Row, wanted: Requeue, index: int) -> str | None:
    due_ms = wanted.due.resolve(context.now_ms) + round(index * wanted.step_ms)
    try:
        context.write("requeue", (row[0], context.now_ms, due_ms))
    except sqlite3.IntegrityError:
        # The only constraint that it can meet: a statement that fails undoes itself, and nothing else.
        (owner,) = context.row("rival", (row[0],))
        return f"the live job {owner} has its unique key"
    _tell(context, (*row[:5], 0, row[6]), "enqueued", "waiting")
    return None


def remove(context: Context, rows: Sequence[Row]) -> None:
    """Take jobs away, with their log lines and large payloads (a trigger does that)."""
    context.write("remove", (_encode([row[0] for row in rows]).decode(),))
    if context.queues.any(context):
        for row in rows:
            _tell(context, row, "removed", row[4])


def _tell(context: Context, row: Row, fact: EventType, state: State) -> None:
    _, id, name, queue, _, errors, _ = row
    tell(context, queue, lambda: [job_event(bare_job(id, name, queue, state, errors), fact, context.now_ms)])
