"""The verb fsck: whether the stored data is consistent.

The reader finds damage, so that long searches do not delay workers. The writer repairs what is still damaged then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from jobmill.core.due import NEVER_MS, Held
from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.core.flows import BY_JOBS
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.flows import hold_while_pending, look_again
from jobmill.stores.sqlite.lanes import change_lanes_of, place_in_lanes
from jobmill.stores.sqlite.statements import BLOCKS

# How many damaged records one call finds and repairs for each check.
LIMIT = 10_000

_HELD = as_json(Held(by=("person",), who="fsck", note="it was never due, and nothing held it"))

_LIVE = "state IN ('waiting', 'running')"
_NEVER = "state = 'waiting' AND due_ms = :never"
# A recurring job that nothing holds has a check of its own.
_NOT_HELD = "(held IS NULL AND recurrence IS NULL) OR json_valid(coalesce(held, '{}')) = 0"


class RowCheck(Struct, frozen=True, kw_only=True):
    """Which rows of a table are damaged, and what is assigned to repair them.

    Without assignments and `run` they are deleted. Without `can_repair` a person must decide.
    """

    what: str
    table: str = "jobmill_jobs"
    #: The column that identifies damaged rows, and what is shown of them.
    key: str = "seq"
    id: str = "id"
    damage: str
    assignments: str = ""
    run: Callable[[SqliteContext, Sequence[int]], object] | None = None
    can_repair: bool = True
    remedy: str


_BLOCKED = f"EXISTS (SELECT 1 FROM jobmill_edges AS edges WHERE edges.job_seq = one.seq AND {BLOCKS})"
_HELD_BY_JOBS = """
    due_ms = :never AND EXISTS (
        SELECT 1 FROM json_each(CASE WHEN json_valid(held) THEN held ELSE '{}' END, '$.by') AS by WHERE by.value = :jobs
    )
"""
_SAME_LANE = """
    {0}.lane IS NOT NULL AND ({0}.state = 'waiting' OR {0}.state = 'running')
    AND {0}.queue = one.queue AND {0}.lane = one.lane
"""
_ONLY_BY_LANE = """(json_extract(held, '$.by') = '["lane"]')"""
_NO_JOB = "NOT EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.seq)"

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
        damage=_NO_JOB,
        remedy="a repair deletes them",
    ),
    "logs_without_job": RowCheck(
        what="log lines without a job, counted by job",
        table="jobmill_logs",
        id="seq",
        damage=_NO_JOB,
        remedy="a repair deletes them",
    ),
    "recurrence_never": RowCheck(
        what="recurring jobs that nothing holds and that are never due",
        damage=f"{_NEVER} AND held IS NULL AND recurrence IS NOT NULL",
        assignments="due_ms = CASE WHEN slot_ms < :never THEN slot_ms ELSE :now END",
        remedy="a repair makes them due at their occurrence, or now if that is unknown",
    ),
    "edge_pending": RowCheck(
        what="jobs that wait for jobs which have ended or are gone",
        table="jobmill_edges",
        key="job_seq",
        id="(SELECT jobs.id FROM jobmill_jobs AS jobs WHERE jobs.seq = one.job_seq)",
        damage=f"""
            state = 'pending' AND NOT EXISTS (SELECT 1 FROM jobmill_outbox AS outbox WHERE outbox.seq = one.on_seq)
            AND NOT EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.on_seq AND jobs.{_LIVE})
            AND EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.job_seq)
        """,
        run=look_again,
        remedy="a repair tells them how those jobs ended, and releases them",
    ),
    "released_late": RowCheck(
        what="jobs that are held by jobs and wait for none",
        damage=f"held IS NOT NULL AND state = 'waiting' AND {_HELD_BY_JOBS} AND NOT {_BLOCKED}",
        run=look_again,
        remedy="a repair releases them",
    ),
    "released_early": RowCheck(
        what="jobs that wait for jobs and are not held",
        damage=f"""
            dependencies > 0 AND state = 'waiting' AND doomed IS NULL AND NOT ({_HELD_BY_JOBS}) AND {_BLOCKED}
            AND NOT EXISTS (
                SELECT 1 FROM jobmill_edges AS edges
                WHERE edges.job_seq = one.seq AND edges.if_failed = 'now' AND edges.state IN ('failed', 'cancelled')
            )
        """,
        run=hold_while_pending,
        remedy="a repair holds them until those jobs have ended",
    ),
    "edges_without_job": RowCheck(
        what="edges of jobs that do not exist, counted by job",
        table="jobmill_edges",
        key="job_seq",
        id="job_seq",
        damage="NOT EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.job_seq)",
        remedy="a repair deletes them",
    ),
    "outbox_without_edges": RowCheck(
        what="jobs in the outbox that have not ended, or that no job waits for",
        table="jobmill_outbox",
        id="seq",
        damage=f"""
            NOT EXISTS (SELECT 1 FROM jobmill_jobs AS jobs WHERE jobs.seq = one.seq AND NOT jobs.{_LIVE})
            OR NOT EXISTS (SELECT 1 FROM jobmill_edges AS own WHERE own.on_seq = one.seq AND own.state = 'pending')
        """,
        remedy="a repair takes them out of the outbox",
    ),
    "steps_without_job": RowCheck(
        what="steps of jobs that do not exist, counted by job",
        table="jobmill_steps",
        id="seq",
        damage=_NO_JOB,
        remedy="a repair deletes them",
    ),
    "signals_without_job": RowCheck(
        what="signals to jobs that do not exist, counted by job",
        table="jobmill_signals",
        id="seq",
        damage=_NO_JOB,
        remedy="a repair deletes them",
    ),
    "lane_slot_free": RowCheck(
        what="lanes with a free slot and a job that waits for it",
        damage=f"""
            slot = -1 AND {_NEVER} AND seq = (
                SELECT jobs.seq FROM jobmill_jobs AS jobs INDEXED BY jobmill_in_lane
                WHERE {_SAME_LANE.format("jobs")} AND jobs.slot = -1 AND jobs.state = 'waiting'
                ORDER BY jobs.priority, jobs.joined_ms, jobs.seq LIMIT 1
            )
            AND NOT EXISTS (
                SELECT 1 FROM jobmill_lanes AS lanes
                WHERE
                    lanes.queue = one.queue AND lanes.lane = one.lane
                    AND (lanes.again_ms IS NOT NULL OR json_extract(lanes.settings, '$.pause') IS NOT NULL)
            )
            AND (
                SELECT count(*) FROM jobmill_jobs AS jobs INDEXED BY jobmill_in_lane
                WHERE {_SAME_LANE.format("jobs")} AND jobs.slot = 0
            ) < coalesce(
                (
                    SELECT json_extract(lanes.settings, '$.running') FROM jobmill_lanes AS lanes
                    WHERE lanes.queue = one.queue AND lanes.lane = one.lane
                ),
                (
                    SELECT json_extract(rules.rule, '$.running') FROM jobmill_lane_rules AS rules
                    WHERE rules.queue = one.queue
                ),
                :never
            )
        """,
        run=change_lanes_of,
        remedy="a repair gives the slots to these jobs",
    ),
    "lane_order": RowCheck(
        what="waiting jobs whose place in their lane differs from what holds them",
        damage=f"""
            lane IS NOT NULL AND state = 'waiting' AND json_valid(coalesce(held, '{{}}')) AND CASE
                WHEN due_ms <> :never THEN slot IS NOT 0
                WHEN {_ONLY_BY_LANE} THEN coalesce(slot, 0) NOT IN (-1, -2) OR joined_ms IS NULL
                ELSE slot IS NOT NULL
            END
        """,
        run=place_in_lanes,
        remedy="a repair puts them where they belong",
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
    if check.run is not None:
        check.run(context, still)
        return len(still)
    change = (
        f"UPDATE {check.table} AS one SET {check.assignments}"
        if check.assignments
        else f"DELETE FROM {check.table} AS one"
    )
    _run(context, f"{change} WHERE {check.key} IN (SELECT value FROM json_each(:seqs))", as_json(still))
    return len(still)


def _damaged(context: SqliteContext, check: RowCheck, seqs: str) -> list[tuple[int, str]]:
    among = f"AND {check.key} IN (SELECT value FROM json_each(:seqs))" if seqs else ""
    columns = f"SELECT DISTINCT {check.key}, {check.id} FROM {check.table} AS one"
    return _run(context, f"{columns} WHERE ({check.damage}) {among} LIMIT {LIMIT}", seqs)


def _run(context: SqliteContext, statement: str, seqs: str) -> list[tuple[int, str]]:
    parameters = {"seqs": seqs, "now": context.now_ms, "never": NEVER_MS, "held": _HELD, "jobs": BY_JOBS}
    return context.cursor.execute(statement, parameters).fetchall()
