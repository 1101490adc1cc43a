"""The verb change: write what the core decides about a job without a lease."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec import structs

from jobmill.core.changes import NO_SUCH_JOB, Change, Changed, Patch, decide, key_taken, states_for
from jobmill.core.events import Event
from jobmill.core.values import Filter
from jobmill.stores.sqlite.codec import SubjectRow, as_json, patched_columns, subject_of
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import publish
from jobmill.stores.sqlite.filters import conditions
from jobmill.stores.sqlite.statements import sql


def change(context: SqliteContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
    """Change jobs by id, or those that match a filter; at most `limit`."""
    changed: list[str] = []
    refused: dict[str, str] = {}
    events: list[Event] = []
    if isinstance(which, Filter):
        rows, more = _matching(context, structs.replace(which, states=states_for(change, which)), limit)
    else:
        ids = list(dict.fromkeys(which))
        rows, more = _by_id(context, ids[:limit], refused), len(ids) > limit
    for row in rows:
        id = row[1]
        patch = decide(change, subject_of(row), context.now_ms, len(changed))
        refusal = patch if isinstance(patch, str) else _apply(context, row, patch)
        if refusal is not None:
            refused[id] = refusal
        elif isinstance(patch, Patch):
            changed.append(id)
            events += patch.events
    publish(context, events)
    context.wakes += bool(changed)
    return Changed(ids=changed, refused=refused, more=more)


def _by_id(context: SqliteContext, ids: Sequence[str], refused: dict[str, str]) -> list[SubjectRow]:
    rows: list[SubjectRow] = []
    for id in ids:
        row = context.row("subject", (id,))
        if row is None:
            refused[id] = NO_SUCH_JOB
        else:
            rows.append(row)
    return rows


def _matching(context: SqliteContext, filter: Filter, limit: int) -> tuple[list[SubjectRow], bool]:
    where, parameters = conditions(filter)
    statement = sql("subjects").replace("{conditions}", where)
    rows = context.cursor.execute(statement, (*parameters, limit + 1)).fetchall()
    return rows[:limit], len(rows) > limit


def _apply(context: SqliteContext, row: SubjectRow, patch: Patch) -> str | None:
    """Write a patch; the reason where another job prevents it."""
    seq, state = row[0], row[4]
    if patch.removes:
        context.write("remove", (as_json([seq]),))
        return None
    columns = patched_columns(patch, context.now_ms)
    assignments = ", ".join(f"{column} = ?" for column in columns)
    if patch.seize is not None:
        assignments += ", claims = claims + 1"
    statement = f"UPDATE jobmill_jobs SET {assignments} WHERE seq = ? AND state = ?"
    try:
        context.cursor.execute(statement, (*columns.values(), seq, state))
    except sqlite3.IntegrityError:
        # Only the unique index can refuse. A failed statement undoes itself and nothing else.
        (owner,) = context.row("rival", (seq,))
        return key_taken(owner)
    return None
