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
    Requeue,
    Seize,
    Subject,
    decide,
    kept,
    key_taken,
    states_for,
)
from jobmill.core.values import Filter
from jobmill.stores.postgres.codec import SHARED_COLUMNS, patch_columns, subject
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_events
from jobmill.stores.postgres.filters import PostgresConditions
from jobmill.stores.postgres.flows import present_edges, reopened, write_edges
from jobmill.stores.postgres.hints import send
from jobmill.stores.postgres.lanes import LaneKey, count_slots, fill, lane_columns, lanes_of
from jobmill.stores.postgres.statements import Statements

_encode = msgspec.json.Encoder().encode


async def change(
    context: PostgresContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000
) -> Changed:
    statements = context.statements
    queues: set[str] = set()
    lanes: set[LaneKey] = set()
    has_marks: set[str] = set()

    async def work(connection: Connection) -> Changed:
        now_ms = await context.now_ms(connection)
        missing: dict[str, str] = {}
        if isinstance(which, Filter):
            found, more = await _matching(connection, statements, which, change, limit)
        else:
            ids = list(dict.fromkeys(which))
            found, more = await by_id(connection, statements, ids[:limit]), len(ids) > limit
            missing = dict.fromkeys({*ids[:limit]} - {one.subject.id for one in found}, NO_SUCH_JOB)
        patches, refused = await _decide(connection, statements, change, found, now_ms)
        queues.clear()
        lanes.clear()
        has_marks.clear()
        queues.update(one.subject.queue for one in found if one.subject.id in patches)
        queues.update(await write(connection, statements, patches, now_ms))
        awaited = [one.subject.id for one in found if one.has_dependents and one.subject.id in patches]
        if awaited and isinstance(change, Requeue):
            await connection.execute(statements.call("reopen", 2), now_ms, awaited)
        await add_events(connection, statements, [event for patch in patches.values() for event in patch.events])
        lanes.update(lanes_of([one.subject for one in found if one.subject.id in patches]))
        # Jobs that waited for these may have lanes, too, which are marked.
        has_marks.update(awaited)
        if patches and isinstance(change, Cancel | Remove):
            hint = ("cancelled" if isinstance(change, Cancel) else "ended", list(patches))
            await send(connection, statements.hints_channel, hint)
        return Changed(ids=list(patches), refused=missing | refused, more=more)

    changed = await context.transact(work)
    if isinstance(change, Seize):
        # They run, so that their lanes may have more slots than they may.
        for queue, lane in lanes:
            await count_slots(context, queue, lane)
    if lanes or has_marks:
        queues.update(await fill(context, lanes))
    if queues:
        context.loops.here().notifications.notify(queues)
    return changed


# ---------------------------------------------------------------------------------------------------- which jobs


class LockedJob(msgspec.Struct, frozen=True):
    """A job that is to be changed."""

    subject: Subject
    dependencies: int | None
    has_dependents: bool | None


async def by_id(connection: Connection, statements: Statements, ids: Sequence[str]) -> list[LockedJob]:
    """The jobs of these ids, locked, in their order."""
    found: dict[str, LockedJob] = {}
    # A job may move from one table to the other between two queries; the third finds one that was requeued meanwhile.
    for name in ("live_matches", "final_matches", "live_matches"):
        if missing := [id for id in ids if id not in found]:
            where = PostgresConditions(Filter(), first=2)
            where.add("jobs.id = ANY ({}::text[])", missing)
            locked = await _locked(connection, where.into(statements, name), where, len(missing))
            found |= {one.subject.id: one for one in locked}
    return [found[id] for id in ids if id in found]


async def _matching(
    connection: Connection, statements: Statements, filter: Filter, change: Change, limit: int
) -> tuple[list[LockedJob], bool]:
    """Jobs that match and may be changed, locked; and whether there are more."""
    where = PostgresConditions(structs.replace(filter, states=states_for(change, filter)), first=2)
    found: list[LockedJob] = []
    for name, wanted in (("live_matches", where.has_live), ("final_matches", where.has_final)):
        if wanted and len(found) <= limit:
            locked = await _locked(connection, where.into(statements, name), where, limit + 1 - len(found))
            found += sorted(locked, key=lambda one: one.subject.id)
    return found[:limit], len(found) > limit


async def _locked(connection: Connection, text: str, where: PostgresConditions, limit: int) -> list[LockedJob]:
    rows = await connection.fetch(text, limit, *where.parameters)
    return [LockedJob(subject(row), row["dependencies"], row["has_dependents"]) for row in rows]


# ---------------------------------------------------------------------------------------------------- decisions


async def _decide(
    connection: Connection, statements: Statements, change: Change, found: Sequence[LockedJob], now_ms: int
) -> tuple[dict[str, Patch], dict[str, str]]:
    """What is written to each job, and which are refused and why. Jobs that become live are written here.

    One by one, because of two jobs with the same unique key only the first becomes live.
    """
    patches: dict[str, Patch] = {}
    refused: dict[str, str] = {}
    dependents = [one.subject.id for one in found if one.dependencies] if isinstance(change, Requeue) else []
    edges = await present_edges(connection, statements, dependents, now_ms) if dependents else {}
    for one in found:
        subject = one.subject
        if subject.id in edges:
            # A dependency that this call has requeued before has not ended.
            its = (reopened(edge) if edge.id in patches else edge for edge in edges[subject.id])
            subject = structs.replace(subject, edges=tuple(its))
        patch = decide(change, subject, now_ms, len(patches))
        if isinstance(patch, Patch) and patch.becomes_live:
            owner = await _make_live(connection, statements, subject, patch, now_ms)
            patch = patch if owner is None else key_taken(owner)
        if isinstance(patch, Patch):
            patches[subject.id] = kept(patch) if one.has_dependents and isinstance(change, Cancel) else patch
        else:
            refused[subject.id] = patch
    return patches, refused


# ---------------------------------------------------------------------------------------------------- what is written


async def write(
    connection: Connection, statements: Statements, patches: dict[str, Patch], now_ms: int
) -> Sequence[str]:
    """Write patches, together where they write the same columns; those of jobs that became live are written already.

    Return the queues of jobs that were released because others were cancelled or removed.
    """
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    cancelled: list[dict[str, Any]] = []
    for id, patch in patches.items():
        if patch.fields and not patch.becomes_live:
            row = patch_columns(id, patch, now_ms)
            (cancelled if row.get("state") == "cancelled" else alike.setdefault(tuple(row), [])).append(row)
    for columns, rows in alike.items():
        is_seized, is_moved = "token" in columns, "due_ms" in columns or "priority" in columns
        sets = [f"{column} = patch.{column}" for column in columns if column not in ("id", "state", "due_ms")]
        sets += ["claims = jobs.claims + 1"] if is_seized else []
        if is_seized or "due_ms" in columns:
            due = "patch.due_ms" if "due_ms" in columns else statements("shown_due_ms")
            sets.append("due_ms = " + statements("changed_due_ms").replace("{due}", due))
        text = statements("change_live").replace("{sets}", ", ".join(sets))
        await connection.execute(text, _encode(rows).decode(), is_seized, is_moved)
    if cleared := [id for id, patch in patches.items() if patch.clears_steps]:
        await connection.execute(statements("clear_records"), cleared)
    removed = [id for id, patch in patches.items() if patch.removes]
    if cancelled:
        own = [[row.get(name) for row in cancelled] for name in ("id", "due_ms", "expires_ms", "keep_last")]
        return await connection.fetchval(statements.call("cancel_jobs", 6), now_ms, *own, removed) or ()
    return (await connection.fetchval(statements("remove_and_free"), now_ms, removed) or ()) if removed else ()


async def _make_live(
    connection: Connection, statements: Statements, subject: Subject, patch: Patch, now_ms: int
) -> str | None:
    """Move a final job back; the id of the live job that has its unique key, where that prevents it."""
    columns = patch_columns(subject.id, patch, now_ms)
    live: tuple[str, ...] = ("held",)
    if subject.lane is not None:
        live, columns = ("held", "slot", "joined_ms"), columns | lane_columns(patch.fields["held"], now_ms)
    text = _with_columns(statements("make_live"), (*SHARED_COLUMNS, *live), columns, "history")
    owner: str | None = await connection.fetchval(text, _encode([columns]).decode())
    if owner is None:
        await write_edges(connection, statements, subject)
    return owner


async def remove(connection: Connection, statements: Statements, ids: Sequence[str], now_ms: int) -> Sequence[str]:
    """Delete jobs, with all that belongs to them. Return the queues of jobs that were released."""
    if not ids:
        return ()
    return await connection.fetchval(statements.call("remove", 2), now_ms, ids) or ()


def _with_columns(text: str, columns: Sequence[str], patched: Collection[str], table: str) -> str:
    """A statement that copies these columns of a table, with those of the patch instead where it has them."""
    values = [f"{'patch' if column in patched else table}.{column}" for column in columns]
    return text.replace("{columns}", ", ".join(columns)).replace("{values}", ", ".join(values))
