"""Settling: what is finished is written under the guard of its lease, many leases in one statement."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec

from jobmill.core.events import Event, bare_job, job_event, settlement_events
from jobmill.core.job import Job
from jobmill.core.values import Lease, Settled, Settlement
from jobmill.stores.sqlite.queues import tell
from jobmill.stores.sqlite.statements import batches, flat, sql_rows
from jobmill.stores.sqlite.context import Context, NeedsCare

_encode = msgspec.json.Encoder().encode

# Fewer that end alike are not worth a statement of their own.
_FEW = 2


def settle(context: Context, settlements: Sequence[Settlement]) -> list[Settled]:
    """Write settlements whose leases still stand; an answer for each."""
    answers: list[Settled] = ["done"] * len(settlements)
    standing = settlements
    if context.careful:
        held = _held_once(context, [settlement.lease for settlement in settlements])
        answers = ["done" if index in held else "lost" for index in range(len(settlements))]
        standing = [settlement for index, settlement in enumerate(settlements) if index in held]
    if _write(context, standing) != len(standing):
        raise NeedsCare
    if context.queues.any(context):
        _tell(context, standing)
    if any(done.state == "waiting" for done in standing) or _makes_room(context, standing):
        context.wakes += 1
    return answers


def held(context: Context, leases: Sequence[Lease]) -> set[int]:
    """The indexes of the leases that still own their jobs."""
    rows = [(index, locate(context, lease), lease.token) for index, lease in enumerate(leases)]
    found: set[int] = set()
    for batch in batches(rows):
        (indexes,) = context.cursor.execute(sql_rows("held", len(batch)), flat((context.now_ms,), batch)).fetchone()
        found.update(msgspec.json.decode(indexes))
    return found


def locate(context: Context, lease: Lease) -> int:
    """The seq of a lease's job: the lease carries it, unless somebody made the lease by hand."""
    if type(lease.locator) is int:
        return lease.locator
    row = context.row("seq_of", (lease.id,))
    return row[0] if row else 0


def _held_once(context: Context, leases: Sequence[Lease]) -> set[int]:
    """The same, but of several settlements of one lease only the first stands."""
    standing = held(context, leases)
    first: dict[str, int] = {}
    for index in sorted(standing):
        first.setdefault(leases[index].id, index)
    return set(first.values())


def _write(context: Context, settlements: Iterable[Settlement]) -> int:
    """Write settlements; how many of them met a lease that stands."""
    alike: dict[tuple[object, ...], list[int]] = {}
    others: list[tuple[object, ...]] = []
    away: list[tuple[object, ...]] = []
    for done in settlements:
        lease = done.lease
        seq = lease.locator if type(lease.locator) is int else locate(context, lease)
        if done.runs is not None and context.row("revision", (seq,)) not in (None, (done.runs.revision,)):
            done = done.overtaken()  # noqa: PLW2901 - the settlement that counts
        keep = done.keep
        if keep is not None and (keep.last == 0 or keep.age_ms == 0):
            away.append((seq, lease.token))
        elif done.state == "succeeded" and _is_plain(done):
            age_ms, last = (None, None) if keep is None else (keep.age_ms, keep.last)
            key = (lease.token, done.errors, done.crashes, _or_null(done.result_json), age_ms, last)
            if key in alike:
                alike[key].append(seq)
            else:
                alike[key] = [seq]
        else:
            others.append(_row(done, seq, context.now_ms))
    met = _write_plain(context, alike)
    if others:
        met += context.write_rows("settle", (context.now_ms,), others)
    if away:
        met += context.write_rows("settle_away", (context.now_ms,), away)
    return met


def _is_plain(done: Settlement) -> bool:
    """Whether nothing else is to be written of a success."""
    return done.runs is None and done.error is None and done.tracebacks is None and done.due is None


def _write_plain(context: Context, alike: dict[tuple[object, ...], list[int]]) -> int:
    met = 0
    few: list[tuple[object, ...]] = []
    for key, seqs in alike.items():
        if len(seqs) > _FEW:
            met += context.write("settle_alike", (_encode(seqs).decode(), context.now_ms, *key))
        else:
            few += [(seq, *key) for seq in seqs]
    return met + context.write_rows("settle_success", (context.now_ms,), few) if few else met


def _or_null(json: bytes) -> str | None:
    return None if json == b"null" else json.decode()


def _row(done: Settlement, seq: int, now_ms: int) -> tuple[object, ...]:
    keep, runs, rearm = done.keep, done.runs, done.rearm
    return (
        seq,
        done.lease.token,
        done.state,
        done.errors,
        done.crashes,
        done.error,
        _or_null(done.result_json),
        None if done.tracebacks is None else _encode(done.tracebacks).decode(),
        keep and keep.age_ms,
        keep and keep.last,
        None if done.due is None else done.due.resolve(now_ms),
        rearm and rearm.slot_ms,
        runs and runs.runs,
        runs and runs.failed_runs,
        runs and runs.last_error,
    )


def _makes_room(context: Context, settlements: Sequence[Settlement]) -> bool:
    """Whether a queue that was full has room for others now."""
    if not context.queues.any(context):
        return False
    known = [context.queues.get(context, queue) for queue in {done.lease.queue for done in settlements}]
    return any(one is not None and one.settings.running_limit is not None for one in known)


def _tell(context: Context, settlements: Sequence[Settlement]) -> None:
    for queue in {done.lease.queue for done in settlements}:
        own = [done for done in settlements if done.lease.queue == queue]
        tell(context, queue, functools.partial(_events_of_all, own, context.now_ms))


def _events_of_all(settlements: Sequence[Settlement], now_ms: int) -> list[Event]:
    return [event for done in settlements for event in _events(done, now_ms)]


def _events(done: Settlement, now_ms: int) -> list[Event]:
    told = settlement_events(done, now_ms)
    if done.keep is not None and done.keep.at_once:
        told.append(job_event(_gone(done), "removed", now_ms))
    return told


def _gone(done: Settlement) -> Job:
    """As much of a job that has left as an event tells."""
    lease = done.lease
    return bare_job(lease.id, lease.name, lease.queue, done.state, done.errors)
