"""The verb change: the core decides for each job, this module writes the patches; all in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import structs

from jobmill.core.changes import (
    NO_SUCH_JOB,
    Cancel,
    Change,
    Changed,
    Patch,
    Remove,
    Subject,
    decide,
    key_taken,
    states_for,
)
from jobmill.core.job import FINAL
from jobmill.core.values import Filter
from jobmill.stores.postgres.codec import HISTORY_COLUMNS, SHARED_COLUMNS, patch_columns, subject
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_events
from jobmill.stores.postgres.filters import PostgresConditions
from jobmill.stores.postgres.hints import send
from jobmill.stores.postgres.statements import Statements

_encode = msgspec.json.Encoder().encode


async def change(
    context: PostgresContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000
) -> Changed:
    statements = context.statements
    queues: set[str] = set()

    async def work(connection: Connection) -> Changed:
        queues.clear()
        now_ms = await context.now_ms(connection)
        patches: dict[str, Patch] = {}
        refused: dict[str, str] = {}
        if isinstance(which, Filter):
            subjects, more = await _matching(connection, statements, which, change, limit)
        else:
            ids = list(dict.fromkeys(which))
            subjects, more = await _by_id(connection, statements, ids[:limit]), len(ids) > limit
            refused = dict.fromkeys({*ids[:limit]} - {one.id for one in subjects}, NO_SUCH_JOB)
        for one in subjects:
            patch = decide(change, one, now_ms, len(patches))
            if isinstance(patch, Patch) and patch.becomes_live:
                # One by one, because of two jobs with the same unique key only the first becomes live.
                owner = await _make_live(connection, statements, patch_columns(one.id, patch, now_ms))
                patch = patch if owner is None else key_taken(owner)
            if isinstance(patch, Patch):
                patches[one.id] = patch
                queues.add(one.queue)
            else:
                refused[one.id] = patch
        await _write(connection, statements, patches, now_ms)
        await add_events(connection, statements, [event for patch in patches.values() for event in patch.events])
        if patches and isinstance(change, Cancel | Remove):
            hint = ("cancelled" if isinstance(change, Cancel) else "ended", list(patches))
            await send(connection, statements.hints_channel, hint)
        return Changed(ids=list(patches), refused=refused, more=more)

    changed = await context.transact(work)
    if queues:
        context.loops.here().notifications.notify(queues)
    return changed


# ---------------------------------------------------------------------------------------------------- which jobs


async def _by_id(connection: Connection, statements: Statements, ids: Sequence[str]) -> list[Subject]:
    """The jobs of these ids, locked, in their order."""
    found: dict[str, Subject] = {}
    # A job may move from one table to the other between two queries; the third finds one that was requeued meanwhile.
    for name in ("live_matches", "final_matches", "live_matches"):
        if missing := [id for id in ids if id not in found]:
            where = PostgresConditions(Filter(), first=2)
            where.add("jobs.id = ANY ({}::text[])", missing)
            found |= {
                one.id: one for one in await _locked(connection, where.into(statements, name), where, len(missing))
            }
    return [found[id] for id in ids if id in found]


async def _matching(
    connection: Connection, statements: Statements, filter: Filter, change: Change, limit: int
) -> tuple[list[Subject], bool]:
    """Jobs that match and may be changed, locked; and whether there are more."""
    where = PostgresConditions(structs.replace(filter, states=states_for(change, filter)), first=2)
    found: list[Subject] = []
    for name, wanted in (("live_matches", where.has_live), ("final_matches", where.has_final)):
        if wanted and len(found) <= limit:
            found += await _locked(connection, where.into(statements, name), where, limit + 1 - len(found))
    return found[:limit], len(found) > limit


async def _locked(connection: Connection, text: str, where: PostgresConditions, limit: int) -> list[Subject]:
    rows = await connection.fetch(text, limit, *where.parameters)
    return [subject(row) for row in rows]


# ---------------------------------------------------------------------------------------------------- what is written


async def _write(connection: Connection, statements: Statements, patches: dict[str, Patch], now_ms: int) -> None:
    """Write patches, together where they write the same columns; those of jobs that became live are written already."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for id, patch in patches.items():
        if patch.fields and not patch.becomes_live:
            row = patch_columns(id, patch, now_ms)
            alike.setdefault(tuple(row), []).append(row)
    for columns, rows in alike.items():
        if rows[0].get("state") in FINAL:
            text = _with_columns(statements("make_final"), HISTORY_COLUMNS, columns, "gone")
            await connection.execute(text, _encode(rows).decode())
        else:
            is_seized, is_moved = "token" in columns, "due_ms" in columns or "priority" in columns
            sets = [f"{column} = patch.{column}" for column in columns if column not in ("id", "state")]
            sets += ["claims = jobs.claims + 1"] if is_seized else []
            text = statements("change_live").replace("{sets}", ", ".join(sets))
            await connection.execute(text, _encode(rows).decode(), is_seized, is_moved)
    await remove(connection, statements, [id for id, patch in patches.items() if patch.removes])


async def _make_live(connection: Connection, statements: Statements, columns: dict[str, object]) -> str | None:
    """Move a final job back; the id of the live job that has its unique key, where that prevents it."""
    text = _with_columns(statements("make_live"), SHARED_COLUMNS, columns, "history")
    owner: str | None = await connection.fetchval(text, _encode([columns]).decode())
    return owner


async def remove(connection: Connection, statements: Statements, ids: Sequence[str]) -> None:
    """Delete jobs, with their log lines."""
    if ids:
        await connection.execute(statements("remove"), ids)


def _with_columns(text: str, columns: Sequence[str], patched: Collection[str], table: str) -> str:
    """A statement that copies these columns of a table, with those of the patch instead where it has them."""
    values = [f"{'patch' if column in patched else table}.{column}" for column in columns]
    return text.replace("{columns}", ", ".join(columns)).replace("{values}", ", ".join(values))
