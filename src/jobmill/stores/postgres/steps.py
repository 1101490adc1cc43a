"""Durable runs: suspensions, and the verbs record_step, recorded and signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core.changes import Hold, Patch, Reschedule, decide
from jobmill.core.flows import BY_JOBS, Recorded, Signal, Signalled, Step
from jobmill.core.values import NOW, Lease, Refused, Settled
from jobmill.errors import InvalidValue
from jobmill.stores.postgres import flows, settle
from jobmill.stores.postgres.change import by_id, write
from jobmill.stores.postgres.claim import NO_CLAIM
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.enqueue import enqueue_on
from jobmill.stores.postgres.lanes import LaneKey, fill, lanes_of
from jobmill.stores.postgres.read import READ_SECONDS

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


async def suspend(context: PostgresContext, one: Settlement) -> Settled:
    """Settle a run that waits for children: enqueue these, and hold the job until they have ended."""
    queues = {one.lease.queue, *(child.queue for child in one.children)}
    lanes = lanes_of([one.lease, *one.children])

    async def work(connection: Connection) -> Settled:
        parameters = (context.clock.given_ms(), True, *settle.parameters([one], [one.lease.queue]), *NO_CLAIM)
        parameters = (*parameters, [], [], True, False)
        rows = await connection.fetch(context.statements.call("exchange", len(parameters)), *parameters)
        if not settle.done_ids({one.lease.id: one}, rows[-1][3]):
            return "lost"
        await _add_children(context, connection, one, rows[-1][6])
        return "done"

    try:
        settled = await context.transact(work)
    except InvalidValue as error:
        return Refused(str(error))
    if lanes:
        queues.update(await fill(context, lanes))
    context.loops.here().notifications.notify(queues)
    return settled


async def _add_children(context: PostgresContext, connection: Connection, one: Settlement, now_ms: int) -> None:
    statements, id = context.statements, one.lease.id
    receipts = await enqueue_on(context, connection, one.children, now_ms)
    ids = [receipt.id for receipt in receipts]
    if any(child.after or not receipt.created for child, receipt in zip(one.children, receipts, strict=True)):
        await flows.check_circle(connection, statements, id, ids)
    (found,) = await by_id(connection, statements, [id])
    patch = decide(Hold(by=BY_JOBS), found.subject, now_ms)
    assert isinstance(patch, Patch)
    await write(connection, statements, {id: patch}, now_ms)
    first = await connection.fetchval(statements("count_edges"), id, len(ids))
    edges = flows.columns([(id, number, child, "run") for number, child in enumerate(ids, first)])
    flows.raise_problems(await connection.fetch(statements.call("add_edges", 7), now_ms, False, [], *edges))


async def record_step(context: PostgresContext, lease: Lease, step: Step) -> bool:
    text, at_ms = context.statements("record_step"), context.clock.given_ms()
    parameters = (at_ms, lease.id, lease.token, step.number, step.name, step.result_json, step.error)
    is_recorded: bool = await context.use(lambda connection: connection.fetchval(text, *parameters))
    return is_recorded


async def recorded(context: PostgresContext, id: str) -> Recorded:
    statements = context.statements

    async def read(connection: Connection) -> Recorded:
        steps = await connection.fetch(statements("steps"), id)
        signals = await connection.fetch(statements("signals"), id)
        return Recorded(
            [Step(number=number, name=name, result_json=result, error=error) for number, name, result, error in steps],
            [Signal(name=name, value_json=value) for name, value in signals],
        )

    return await context.use(read, READ_SECONDS)


async def signal(context: PostgresContext, id: str, signal: Signal) -> Signalled:
    statements = context.statements
    queues: set[str] = set()
    lanes: set[LaneKey] = set()

    async def work(connection: Connection) -> Signalled:
        queues.clear()
        lanes.clear()
        found = await by_id(connection, statements, [id])
        if not found:
            return "unknown"
        subject = found[0].subject
        if subject.state not in ("waiting", "running"):
            return "final"
        rows = await connection.fetch(statements("signal"), id, signal.name, signal.value_json)
        if not rows:
            return "exists"
        if subject.state == "waiting" and rows[0][0] == signal.name:
            now_ms = await context.now_ms(connection)
            patch = decide(Reschedule(NOW), subject, now_ms)
            assert isinstance(patch, Patch)
            await write(connection, statements, {id: patch}, now_ms)
            queues.add(subject.queue)
            lanes.update(lanes_of([subject]))
        return "stored"

    answer = await context.transact(work)
    if lanes:
        queues.update(await fill(context, lanes))
    if queues:
        context.loops.here().notifications.notify(queues)
    return answer
