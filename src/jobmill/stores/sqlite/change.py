"""The verb change: write what the core decides about a job without a lease."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec import structs

from jobmill.core.changes import (
    NO_SUCH_JOB,
    Cancel,
    Change,
    Changed,
    Patch,
    Remove,
    Requeue,
    Subject,
    decide,
    kept,
    key_taken,
    states_for,
)
from jobmill.core.events import Event
from jobmill.core.job import LIVE
from jobmill.core.values import Filter
from jobmill.stores.sqlite.codec import SubjectRow, as_json, patched_columns, subject_of
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import publish
from jobmill.stores.sqlite.filters import filtered, searched_after
from jobmill.stores.sqlite.flows import (
    cancel_edges,
    pinned,
    refreshed_edges,
    reopen_edges,
    set_edges,
    write_edges,
)


def change(context: SqliteContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
    """Change jobs by id, or those that match a filter; at most `limit`."""
    changed: list[str] = []
    refused: dict[str, str] = {}
    events: list[Event] = []
    found: list[tuple[str, SubjectRow | None]]
    if isinstance(which, Filter):
        wanted = structs.replace(which, states=states_for(change, which))
        statement, parameters = filtered("subjects", wanted, searched_after(context, wanted))
        rows = context.cursor.execute(statement, (*parameters, limit + 1)).fetchall()
        found, more = [(row[1], row) for row in rows[:limit]], len(rows) > limit
    else:
        ids = list(dict.fromkeys(which))
        found, more = [(id, context.row("subject", (id,))) for id in ids[:limit]], len(ids) > limit
    seqs: list[int] = []
    for id, row in found:
        patch = NO_SUCH_JOB if row is None else _change_one(context, row, change, len(changed))
        if row is None or isinstance(patch, str):
            refused[id] = str(patch)
        else:
            changed.append(id)
            seqs.append(row[0])
            events += patch.events
    publish(context, events)
    if isinstance(change, Cancel | Remove):
        context.write("free_keys", (as_json(changed),))
    if isinstance(change, Cancel):
        set_edges(context, (), seqs)
    elif isinstance(change, Requeue):
        reopen_edges(context, seqs)
    context.wakes += bool(changed)
    return Changed(ids=changed, refused=refused, more=more)


def _change_one(context: SqliteContext, row: SubjectRow, change: Change, index: int) -> Patch | str:
    """Decide and write; the patch, or why the job is refused."""
    seq, subject = row[0], subject_of(row)
    if isinstance(change, Requeue) and row[-1]:
        subject = structs.replace(subject, edges=refreshed_edges(context, seq))
    patch = decide(change, subject, context.now_ms, index)
    if isinstance(patch, str):
        return patch
    if subject.lane is not None:
        # A job that is requeued may be the only live one with a lane.
        context.has_lanes = True if patch.becomes_live else context.has_lanes
        context.changed_lanes[subject.queue, subject.lane] = None
    patch = _prepare_dependents(context, seq, subject, change, patch)
    if patch.removes:
        context.write("remove", (as_json([seq]),))
        return patch
    more = ", claims = claims + 1" if patch.seize is not None else ""
    try:
        context.update_job(seq, patched_columns(patch, context.now_ms), more)
    except sqlite3.IntegrityError:
        # Only the unique index can refuse. A failed statement undoes itself and nothing else.
        (owner,) = context.row("rival", (seq,))
        return key_taken(owner)
    if subject.edges:
        write_edges(context, {seq: subject.edges})
    if patch.clears_steps:
        context.write("clear_steps", (seq,))
        context.write("clear_signals", (seq,))
    return patch


def _prepare_dependents(context: SqliteContext, seq: int, subject: Subject, change: Change, patch: Patch) -> Patch:
    """Other jobs may wait for a job that would be removed: it stays, or they are told. The patch to write."""
    if patch.removes and pinned(context, [seq]):
        if isinstance(change, Cancel):
            return kept(patch)
        if subject.state in LIVE:
            cancel_edges(context, seq)
    return patch
