"""Jobs that wait for jobs: edges, and the verbs that only flows need. See release.sql."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw, structs

from jobmill.core.changes import Subject
from jobmill.core.flows import (
    Dependency,
    Dependent,
    circular_dependency,
    first_line,
    live_dependency,
    recurring_dependency,
    unknown_dependency,
)
from jobmill.core.job import State
from jobmill.core.values import FLOW_COUNT_LIMIT, FlowCount, NewJob, Receipt
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.lanes import heal
from jobmill.stores.postgres.read import READ_SECONDS
from jobmill.stores.postgres.statements import Statements

if TYPE_CHECKING:
    from jobmill.stores.postgres.enqueue import CallFunction

#: How many edges a call examines for a dependency that has left the store by other means.
EXAMINED = 5_000

_PROBLEMS = {"unknown": unknown_dependency, "recurring": recurring_dependency, "live": live_dependency}

#: Job, number, dependency and `if_failed` of an edge.
Edge = tuple[str, int, str, str]


# ---------------------------------------------------------------------------------------------------- enqueue


def awaited_by(new_jobs: Sequence[NewJob]) -> set[str]:
    """The ids that jobs of a call wait for. Raise InvalidValue if one waits for a recurring job, or recurs itself."""
    recurring = {new.id for new in new_jobs if new.recurrence is not None}
    awaited: set[str] = set()
    for new in new_jobs:
        if new.after and new.id in recurring:
            raise recurring_dependency(new.id)
        awaited.update(after.id for after in new.after)
    for id in sorted(awaited & recurring):
        raise recurring_dependency(id)
    return awaited


async def add_new_edges(
    call: CallFunction, new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], now_ms: int, *, inside: bool
) -> None:
    """Give the jobs that were created their edges: to the jobs that the others became."""
    pairs = list(zip(new_jobs, receipts, strict=True))
    became = {new.id: receipt.id for new, receipt in pairs}
    edges = [
        (new.id, number, became.get(after.id, after.id), after.if_failed)
        for new, receipt in pairs
        if receipt.created
        for number, after in enumerate(new.after)
    ]
    targets = {edge[2] for edge in edges}
    own = [receipt.id for receipt in receipts if receipt.created and receipt.id in targets]
    if edges:
        raise_problems(await call("enqueue_edges", (now_ms, inside, own, *columns(edges))))


def columns(edges: Sequence[Edge]) -> list[list[object]]:
    """Edges as parameters of the functions that add them."""
    return [list(column) for column in zip(*edges, strict=True)]


def raise_problems(rows: Iterable[Iterable[Any]]) -> None:
    """Raise InvalidValue if edges could not be added."""
    for id, problem in rows:
        raise _PROBLEMS[problem](id)


async def check_circle(connection: Connection, statements: Statements, id: str, children: Sequence[str]) -> None:
    """Raise InvalidValue if one of these jobs waits for the job that would wait for them."""
    if await connection.fetchval(statements("waits_for_job"), list(children), id):
        raise circular_dependency(id)


# ---------------------------------------------------------------------------------------------------- requeue


async def present_edges(
    connection: Connection, statements: Statements, ids: Sequence[str], now_ms: int
) -> dict[str, list[Dependency]]:
    """The edges of final jobs, each in the present state of its dependency.

    None of the dependencies can end until the commit, so no settlement sets these edges.
    """
    await connection.execute(statements("lock_dependencies"), now_ms, ids)
    edges: dict[str, list[Dependency]] = {}
    for job_id, on_id, number, if_failed, state, error in await connection.fetch(statements("refreshed_edges"), ids):
        edge = Dependency(id=on_id, number=number, if_failed=if_failed, state=state, error=first_line(error))
        edges.setdefault(job_id, []).append(edge)
    return edges


def reopened(edge: Dependency) -> Dependency:
    """An edge whose dependency lives again."""
    return structs.replace(edge, state="pending", error=None)


async def write_edges(connection: Connection, statements: Statements, subject: Subject) -> None:
    """Write the edges of a job that is requeued."""
    if edges := subject.edges:
        states, errors = [edge.state for edge in edges], [edge.error for edge in edges]
        numbers = [edge.number for edge in edges]
        await connection.execute(statements("write_edges"), subject.id, numbers, states, errors)


# ---------------------------------------------------------------------------------------------------- verbs


async def flush_outbox(context: PostgresContext, limit: int = 1_000) -> int:
    """Release jobs that one statement could not release.

    Where there are none, examine some edges for dependencies that have ended by other means: a process of an older
    version, or SQL by hand.
    """
    released, queues = await context.transact(lambda connection: _flush(context, connection, limit))
    given = await heal(context)
    if queues or given:
        context.loops.here().notifications.notify([*(queues or ()), *given])
    return released


async def _flush(context: PostgresContext, connection: Connection, limit: int) -> tuple[int, Sequence[str] | None]:
    now_ms, statements = await context.now_ms(connection), context.statements
    row = await connection.fetchrow(statements.call("flush_outbox", 2), now_ms, limit)
    if row is None or not row[0]:
        row = await connection.fetchrow(statements("lost_edges"), *context.examined, EXAMINED)
        assert row is not None
        lost, id, number = row
        context.examined = ("", -1) if id is None else (id, number)
        if not lost:
            return 0, None
        row = await connection.fetchrow(statements.call("release", 5), now_ms, lost, [], None, limit)
    assert row is not None
    return row[0], row[1]


async def dependencies(context: PostgresContext, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
    text = context.statements("dependencies")
    rows = await context.use(lambda connection: connection.fetch(text, id, first, limit), READ_SECONDS)
    return [
        Dependency(
            id=on_id,
            number=number,
            if_failed=if_failed,
            state=state,
            error=error,
            result_json=None if result is None else Raw(result.encode()),
        )
        for on_id, number, if_failed, state, error, result in rows
    ]


async def dependents(context: PostgresContext, id: str, limit: int = 100) -> list[Dependent]:
    text = context.statements("dependents")
    rows = await context.use(lambda connection: connection.fetch(text, id, limit), READ_SECONDS)
    return [Dependent(id=job_id, if_failed=if_failed, state=state) for job_id, if_failed, state in rows]


async def flows(context: PostgresContext, before: str | None = None, limit: int = 50) -> list[str]:
    text = context.statements("flows")
    rows = await context.use(lambda connection: connection.fetch(text, before, limit), READ_SECONDS)
    return [row[0] for row in rows]


async def flow_counts(
    context: PostgresContext, ids: Sequence[str], limit: int = FLOW_COUNT_LIMIT
) -> dict[str, FlowCount]:
    text = context.statements("flow_counts")
    rows = await context.use(lambda connection: connection.fetch(text, list(ids), limit), READ_SECONDS)
    states: dict[str, dict[State, int]] = {id: {} for id in ids}
    for flow, state, count in rows:
        states[flow][state] = count
    return {id: FlowCount.of(own, limit) for id, own in states.items()}


async def edges(context: PostgresContext, ids: Sequence[str]) -> set[tuple[str, str]]:
    text = context.statements("edges_between")
    rows = await context.use(lambda connection: connection.fetch(text, list(ids)), READ_SECONDS)
    return {(id, other) for id, other in rows}
