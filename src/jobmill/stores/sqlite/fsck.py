"""The verb fsck: whether the stored data is consistent.

The reader finds damage, so that long searches do not delay workers. The writer repairs what is still damaged then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from jobmill.core.due import NEVER_MS, Held
from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext

# How many damaged records one call finds and repairs for each check.
LIMIT = 10_000

_HELD = as_json(Held(by=("person",), who="fsck", note="it was never due, and nothing held it"))

_LIVE = "state IN ('waiting', 'running')"
_NEVER = "state = 'waiting' AND due_ms = :never"
# A recurring job that nothing holds has a check of its own.
_NOT_HELD = "(held IS NULL AND recurrence IS NULL) OR json_valid(coalesce(held, '{}')) = 0"


class RowCheck(Struct, frozen=True, kw_only=True):
    """Which rows of a table are damaged, and what is assigned to repair them.

    Without assignments they are deleted. Without `can_repair` a person must decide.
    """

    what: str
    table: str = "jobmill_jobs"
    id: str = "id"
    damage: str
    assignments: str = ""
    can_repair: bool = True
    remedy: str


_CHECKS = {
    "running_without_lease": RowCheck(
        what="running jobs without the end of a lease, which no worker takes over",
        damage="state = 'running' AND lease_until_ms IS NULL",
        assignments="lease_until_ms = :now",
        remedy="a repair ends their leases, so that workers take them over as after a crash",
    ),
    "token_on_waiting": RowCheck(
        what="jobs that do not run but have a lease",
        damage="state <> 'running' AND (token IS NOT NULL OR lease_until_ms IS NOT NULL)",
        assignments="token = NULL, lease_until_ms = NULL",
        remedy="a repair removes these leases",
    ),
    "unique_key_twice": RowCheck(
        what="live jobs with the unique key of another live job",
        damage=f"unique_key IS NOT NULL AND {_LIVE} AND EXISTS (SELECT 1 FROM jobmill_jobs AS other"
        " WHERE other.unique_key = one.unique_key AND other.queue = one.queue AND other.name = one.name"
        f" AND other.seq < one.seq AND other.{_LIVE})",
        can_repair=False,
        remedy="cancel these jobs (`jobmill jobs cancel`), and create the index jobmill_unique again",
    ),
    "payload_without_job": RowCheck(
        what="large payloads without a job",
        table="jobmill_payloads",
        id="seq",
        damage="NOT EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.seq)",
        remedy="a repair deletes them",
    ),
    "logs_without_job": RowCheck(
        what="log lines without a job, counted by job",
        table="jobmill_logs",
        id="seq",
        damage="NOT EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.seq)",
        remedy="a repair deletes them",
    ),
    "recurrence_never": RowCheck(
        what="recurring jobs that nothing holds and that are never due",
        damage=f"{_NEVER} AND held IS NULL AND recurrence IS NOT NULL",
        assignments="due_ms = CASE WHEN slot_ms < :never THEN slot_ms ELSE :now END",
        remedy="a repair makes them due at their occurrence, or now if that is unknown",
    ),
    "held_inconsistent": RowCheck(
        what="held jobs with a due time, or jobs that are never due and that nothing holds",
        damage=f"CASE WHEN {_NEVER} THEN {_NOT_HELD} ELSE held IS NOT NULL END",
        assignments=f"held = CASE WHEN {_NEVER} THEN :held END",
        remedy="a repair ends the hold of those with a due time; a person holds the others, and may release them",
    ),
}

#: By check: the seqs and ids of damaged records.
Damage: TypeAlias = Mapping[str, list[tuple[int, str]]]


def find(context: SqliteContext) -> Damage:
    """Look for damage."""
    return {name: _damaged(context, check, "") for name, check in _CHECKS.items()}


def repair(context: SqliteContext, damage: Damage) -> dict[str, int]:
    """Repair what is still damaged; how many records, by check."""
    context.wakes += 1
    return {
        name: _repair(context, _CHECKS[name], [seq for seq, _ in rows])
        for name, rows in damage.items()
        if _CHECKS[name].can_repair
    }


def findings(damage: Damage, repaired: Mapping[str, int]) -> list[Finding]:
    """What was found, and what was done about it."""
    return [
        Finding(
            check=name,
            level="error" if len(rows) > repaired.get(name, 0) else "ok",
            text=f"found {_shown(len(rows))}: {_CHECKS[name].what}",
            evidence={"ids": [str(id) for _, id in rows[:IDS_SHOWN]]} if rows else {},
            remedy=_CHECKS[name].remedy if rows else None,
            count=len(rows),
            can_repair=_CHECKS[name].can_repair,
            repaired=repaired.get(name, 0),
        )
        for name, rows in damage.items()
    ]


def _shown(count: int) -> str:
    return f"{count} or more" if count == LIMIT else str(count or "none")


def _repair(context: SqliteContext, check: RowCheck, seqs: list[int]) -> int:
    still = [seq for seq, _ in _damaged(context, check, as_json(seqs))] if seqs else []
    change = (
        f"UPDATE {check.table} AS one SET {check.assignments}"
        if check.assignments
        else f"DELETE FROM {check.table} AS one"
    )
    _run(context, f"{change} WHERE seq IN (SELECT value FROM json_each(:seqs))", as_json(still))
    return len(still)


def _damaged(context: SqliteContext, check: RowCheck, seqs: str) -> list[tuple[int, str]]:
    among = "AND seq IN (SELECT value FROM json_each(:seqs))" if seqs else ""
    columns = f"SELECT DISTINCT seq, {check.id} FROM {check.table} AS one"
    return _run(context, f"{columns} WHERE ({check.damage}) {among} LIMIT {LIMIT}", seqs)


def _run(context: SqliteContext, statement: str, seqs: str) -> list[tuple[int, str]]:
    parameters = {"seqs": seqs, "now": context.now_ms, "never": NEVER_MS, "held": _HELD}
    return context.cursor.execute(statement, parameters).fetchall()
