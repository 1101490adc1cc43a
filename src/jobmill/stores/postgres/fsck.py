"""The verb fsck: whether the rows agree with each other."""

from __future__ import annotations

from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.read import READ_SECONDS

# How many rows of each check one call repairs.
MAX_REPAIRED = 10_000

#: By check: what is wrong with the jobs that it finds. A check has a statement fsck_x, and repair_x if it can repair.
CHECKS = {
    "running_without_lease": "jobs run without a lease token, so that no worker can settle them",
    "token_on_waiting": "waiting jobs have a lease token",
    "unique_key_twice": "live jobs have the unique key of another live job",
    "history_also_live": "jobs are both live and final, so that they cannot be settled",
    "logs_without_job": "removed jobs have log lines",
    "recurrence_never": "recurring jobs are never due, but nothing holds them",
    "held_inconsistent": "waiting jobs are held but due, or never due but not held",
    "edge_pending": "jobs wait for jobs that have ended or are gone",
    "released_late": "jobs are held by jobs, but wait for none",
    "released_early": "jobs wait for jobs, but nothing holds them",
    "edges_without_job": "removed jobs wait for others",
    "dependents_unmarked": "jobs lack the mark that others wait for them",
    "pinned_for_nobody": "final jobs are kept for others that are gone",
    "outbox_without_edges": "jobs are in the outbox although they are live, or although nothing waits for them",
    "records_without_job": "removed jobs have steps or signals",
    "slot_inconsistent": "jobs of lanes have a slot but are held, or are not held but have no slot",
    "slots_free": "lanes have free slots, but hold jobs that could run",
}
_REMEDIES = {
    "unique_key_twice": "cancel these jobs (`jobmill jobs cancel`), and create the index jobs_unique_key again",
}


async def fsck(context: PostgresContext, *, repair: bool = False) -> list[Finding]:
    """One finding for each check, in transactions of their own."""
    return [await _check(context, check, repair) for check in CHECKS]


async def _check(context: PostgresContext, check: str, repair: bool) -> Finding:
    statements, can_repair, repaired = context.statements, check not in _REMEDIES, 0
    text = f"SELECT count(*), (array_agg(id ORDER BY id))[1:{IDS_SHOWN}] FROM ({statements(f'fsck_{check}')}) AS found"
    row = await context.use(lambda connection: connection.fetchrow(text), READ_SECONDS)
    assert row is not None
    count, ids = row
    if not count:
        return Finding(check=check, text=f"no {CHECKS[check]}", can_repair=can_repair)

    async def write(connection: Connection) -> int:
        text = statements(f"repair_{check}")
        parameters = [MAX_REPAIRED, await context.now_ms(connection)]
        done: int = await connection.fetchval(text, *parameters[: 2 if "$2" in text else 1])
        # A repaired job may stand before the position of a claim cursor.
        await connection.execute(statements("rewind"))
        return done

    if repair and can_repair:
        repaired = await context.transact(write, READ_SECONDS)
    is_done = repaired >= count
    return Finding(
        check=check,
        level="ok" if is_done else "error",
        text=f"{count:,} {CHECKS[check]}" + (f"; {repaired:,} were repaired" if repaired else ""),
        evidence={"ids": ids},
        remedy=None if is_done else _REMEDIES.get(check, "repair them: `jobmill fsck --repair`"),
        count=count,
        can_repair=can_repair,
        repaired=repaired,
    )
