"""Settling: write finished jobs under the guard of their leases, many leases in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jobmill.core.events import Event, settlement_events, written_events
from jobmill.core.values import Settled
from jobmill.stores.sqlite.codec import as_json, plain_success, settlement_row
from jobmill.stores.sqlite.context import FEW, NeedsCare, SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish
from jobmill.stores.sqlite.flows import hold_while_pending, known_edges, pinned, set_edges
from jobmill.stores.sqlite.lanes import give_up_slots
from jobmill.stores.sqlite.leases import held, locate
from jobmill.stores.sqlite.queues import known_queues
from jobmill.stores.sqlite.steps import suspend

if TYPE_CHECKING:
    from jobmill.core.values import Runs, Settlement


def settle(context: SqliteContext, settlements: Sequence[Settlement]) -> list[Settled]:
    """Write the settlements whose leases have not ended. Return one answer per settlement."""
    answers: list[Settled] = ["done"] * len(settlements)
    if context.careful or "suspended" in [done.outcome for done in settlements]:
        settlements, answers = _special(context, settlements)
    stay = _staying(context, settlements) if known_edges(context) else frozenset()
    if _write(context, settlements, stay) != len(settlements):
        raise NeedsCare
    if queues := feeding(context):
        written = [done for done in settlements if done.lease.queue in queues]
        publish(context, [event for done in written for event in _events(context, done, stay)])
    if context.has_edges:
        _tell_dependents(context, settlements)
    limited = {queue for queue, row in known_queues(context).items() if row.settings.running_limit is not None}
    context.wakes += any(done.state == "waiting" or done.runs or done.lease.queue in limited for done in settlements)
    return answers


def _special(context: SqliteContext, settlements: Sequence[Settlement]) -> tuple[Sequence[Settlement], list[Settled]]:
    """Suspend runs, and leave out lost leases where they are known; the settlements left, and the answers for all."""
    answers: list[Settled] = _standing(context, settlements) if context.careful else ["done"] * len(settlements)
    left: list[Settlement] = []
    for index, done in enumerate(settlements):
        if answers[index] == "done":
            if done.outcome == "suspended":
                answers[index] = suspend(context, done)
            else:
                left.append(done)
    return left, answers


def _staying(context: SqliteContext, settlements: Iterable[Settlement]) -> frozenset[int]:
    """Jobs that would be removed at once, but stay because others wait for them."""
    return pinned(context, [locate(context, done.lease) for done in settlements if done.keep and done.keep.at_once])


def _tell_dependents(context: SqliteContext, settlements: Iterable[Settlement]) -> None:
    """Release the jobs that waited for those that have ended. A job that waits again may have to wait for others."""
    succeeded: list[int] = []
    others: list[int] = []
    back: list[int] = []
    for done in settlements:
        list_ = succeeded if done.state == "succeeded" else back if done.state == "waiting" else others
        list_.append(locate(context, done.lease))
    set_edges(context, succeeded, others)
    hold_while_pending(context, back)


def _events(context: SqliteContext, done: Settlement, stay: frozenset[int]) -> list[Event]:
    stays = bool(stay) and locate(context, done.lease) in stay
    return settlement_events(done, context.now_ms) if stays else written_events(done, context.now_ms)


def _standing(context: SqliteContext, settlements: Sequence[Settlement]) -> list[Settled]:
    """The answers for all settlements: "done" where the lease has not ended.

    If there are several settlements for one job, only the first one counts.
    """
    first: dict[str, int] = {}
    for index in sorted(held(context, [done.lease for done in settlements])):
        first.setdefault(settlements[index].lease.id, index)
    standing = set(first.values())
    return ["done" if index in standing else "lost" for index in range(len(settlements))]


def _write(context: SqliteContext, settlements: Iterable[Settlement], stay: frozenset[int]) -> int:
    """Write settlements. Return how many of them were written, because their leases had not ended.

    `stay`: jobs that are not removed, whatever their retention says.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    others: list[tuple[object, ...]] = []
    removed: list[tuple[object, ...]] = []
    in_lanes: list[tuple[int, Settlement]] = []
    for done in settlements:
        seq = locate(context, done.lease)
        if done.runs is not None:
            done = _end_run(context, done, done.runs, seq)  # noqa: PLW2901 - the settlement that counts
        if done.keep is not None and done.keep.at_once and seq not in stay:
            removed.append((seq, done.lease.token))
        elif (plain := plain_success(done)) is not None:
            alike.setdefault(plain, []).append(seq)
        else:
            others.append(settlement_row(done, seq, context.now_ms))
        if done.lease.lane is not None:
            in_lanes.append((seq, done))
    many = [(plain, seqs) for plain, seqs in alike.items() if len(seqs) > FEW]
    few = [(seq, *plain) for plain, seqs in alike.items() if len(seqs) <= FEW for seq in seqs]
    written = sum(context.write("settle_alike", (as_json(seqs), context.now_ms, *plain)) for plain, seqs in many)
    for statement, rows in ("settle_success", few), ("settle", others), ("settle_and_remove", removed):
        written += context.write_rows(statement, (context.now_ms,), rows)
    if in_lanes:
        give_up_slots(context, in_lanes)
    return written


def _end_run(context: SqliteContext, done: Settlement, runs: Runs, seq: int) -> Settlement:
    """The settlement to write for a recurring job. If the job waits again, record its run for the statistics."""
    if context.row("revision", (seq,)) not in (None, (runs.revision,)):
        done = done.overtaken()
    if done.state == "waiting":
        run = (done.lease.queue, done.lease.name, done.run_state, context.now_ms, runs.started_ms)
        context.write("note_run", run)
    return done
