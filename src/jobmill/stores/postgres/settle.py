"""Settlements as parameters of an exchange, and what became of them."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from jobmill.core.job import Keep
from jobmill.core.lanes import keeps_slot

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

_encode = msgspec.json.Encoder().encode
#: What distinguishes a plain success from other settlements that end a job.
_what = operator.attrgetter("state", "errors", "crashes", "error", "attempts", "runs")
_PLAIN = ("succeeded", 0, 0, None, None, None)
_decode_ids = msgspec.json.Decoder(list[str]).decode


class ReleasedJobs(msgspec.Struct, frozen=True):
    """What an exchange has released: the queues of released jobs; and the lanes.

    Where the caller adds the events, also the settled jobs that others wait for.
    """

    awaited: list[str] | None = None
    queues: list[str] | None = None
    has_more: bool = False
    #: How many jobs of lanes got slots, in which queues, and which lanes the caller must look at again.
    given: int = 0
    given_queues: list[str] | None = None
    again_queues: list[str] | None = None
    again_lanes: list[str] | None = None


NOTHING = ReleasedJobs()
_decode_released = msgspec.json.Decoder(ReleasedJobs).decode


def first_of_each(settlements: Sequence[Settlement]) -> tuple[dict[str, Settlement], list[Settlement]]:
    """By id the settlements that one statement takes, and further settlements of the same jobs."""
    by_id: dict[str, Settlement] = {}
    later = [one for one in settlements if by_id.setdefault(one.lease.id, one) is not one]
    return by_id, later


def parameters(settlements: Collection[Settlement], queues: Iterable[str]) -> tuple[object, ...]:
    """What the function exchange takes: 14 columns of those that end a job, the others as JSON, and their queues.

    settle_final.sql says which columns are empty where all that end are plain successes.
    """
    final = [one for one in settlements if one.state != "waiting"]
    waiting = [_waiting(one) for one in settlements if one.state == "waiting"]
    columns = _plain(final) if _are_plain(final) else map(list, zip(*map(_final, final), strict=True))
    runs = map(list, zip(*map(_final_runs, final), strict=True)) if any(one.runs for one in final) else ([],) * 4
    return (*columns, *runs, _encode(waiting).decode() if waiting else None, list(queues))


def _are_plain(final: Sequence[Settlement]) -> bool:
    """Whether all are successes without errors, crashes and runs, of jobs that are kept alike; or none."""
    keep = final[0].keep if final else None
    return (keep is None or not keep.at_once) and all(_what(one) == _PLAIN and one.keep == keep for one in final)


def _plain(final: Sequence[Settlement]) -> tuple[Sequence[object], ...]:
    """The columns of plain successes: ids, tokens, results, and how long all of them are kept."""
    ids, tokens = [one.lease.id for one in final], [one.lease.token for one in final]
    results = [one.result_json.decode() for one in final] if any(one.result_json != b"null" for one in final) else []
    keep = [one.keep or Keep() for one in final[:1]]
    return (ids, tokens, [], [], [], results, [], [], [one.age_ms for one in keep], [one.last for one in keep])


def _final(one: Settlement) -> tuple[object, ...]:
    """The columns of a settlement that ends a job: see settle_final.sql."""
    lease, keep = one.lease, one.keep
    attempts = None if one.attempts is None else _encode(one.attempts).decode()
    kept = (None, None) if keep is None else (keep.age_ms, keep.last)
    result = one.result_json.decode()
    return (lease.id, lease.token, one.state, one.errors, one.crashes, result, one.error, attempts, *kept)


def _final_runs(one: Settlement) -> tuple[object, ...]:
    """The further columns of a settlement that ends a recurring job."""
    runs = one.runs
    if runs is None:
        return (None, None, None, None)
    return (runs.runs, runs.failed_runs, runs.last_error, runs.revision if has_revision(one) else None)


def has_revision(one: Settlement) -> bool:
    """Whether it is valid only for the recurrence that it was decided from; `overtaken()` is valid for any."""
    return one.runs is not None and (one.state != "waiting" or one.rearm is not None)


def _waiting(one: Settlement) -> dict[str, object]:
    runs = one.runs
    return {
        "id": one.lease.id,
        "token": one.lease.token,
        "errors": one.errors,
        "crashes": one.crashes,
        "error": one.error,
        "result": one.result_json.decode(),
        "attempts": None if one.attempts is None else _encode(one.attempts).decode(),
        "due_ms": one.due and one.due.at_ms,
        "delay_ms": one.due.after_ms if one.due is not None and one.due.at_ms is None else None,
        "slot_ms": one.rearm and one.rearm.occurrence_ms,
        "runs": runs and runs.runs,
        "failed_runs": runs and runs.failed_runs,
        "last_error": runs and runs.last_error,
        "revision": runs.revision if runs is not None and has_revision(one) else None,
        "run_state": runs and one.run_state,
        "waits_for": one.waits_for,
        "keeps": _keeps(one),
    }


def _keeps(one: Settlement) -> str:
    """Whether a job with a lane keeps its slot."""
    if keeps_slot(one, strict=False):
        return "always"
    return "strict" if keeps_slot(one, strict=True) else "never"


def done_ids(by_id: dict[str, Settlement], answer: str | None) -> set[str]:
    """The ids that were settled, by the answer of the function exchange: NULL for all."""
    return set(by_id) if answer is None else set(_decode_ids(answer))


def released(answer: str | None) -> ReleasedJobs:
    """What was released, by the answer of the function exchange: NULL for nothing."""
    return NOTHING if answer is None else _decode_released(answer)


def freed_queues(settled: Iterable[Settlement]) -> set[str]:
    """Queues in which a settled job waits again and is due at once."""
    return {one.lease.queue for one in settled if one.state == "waiting" and (one.due is None or one.due.after_ms == 0)}
