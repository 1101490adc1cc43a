"""What is handed in, as the scripts take it: settlements and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobmill.core.events import settlement_events
from jobmill.core.job import LOG_LINES_KEPT, Keep, Progress
from jobmill.core.values import Broken, Claimed, Lease, Report, Settlement
from jobmill.stores.redis.context import MOST_A_CALL, MOST_BYTES_A_CALL, text
from jobmill.stores.redis.ids import local_id

# Of a recurring job each run stays, as BullMQ's do; where nothing was said, for a day: one a second would fill memory.
RUNS_KEPT_MS = 86_400_000


class Handed:
    """Settlements of one call, sorted: those that are written in a few steps for all, and the others, one by one."""

    def __init__(self, settlements: list[Settlement], now_ms: int, told: bool) -> None:
        self.plain: list[tuple[str, str, str, int | None]] = []
        self.others: list[dict[str, Any]] = []
        self._is_plain: list[bool] = []
        several = len({one.lease.id for one in settlements}) < len(settlements)
        for done in settlements:
            # What is settled twice in a call is settled in order; what is told goes with its facts.
            plain = None if told or several else _plain(done)
            self._is_plain.append(plain is not None)
            if plain is None:
                self.others.append(_written(done, now_ms, told))
            else:
                self.plain.append(plain)

    def in_order(self, plain: list[bytes], others: list[bytes]) -> list[bytes]:
        """The answers, as the settlements came."""
        if not others or not plain:
            return plain or others
        of_plain, of_others = iter(plain), iter(others)
        return [next(of_plain if is_plain else of_others) for is_plain in self._is_plain]


def fitting(settlements: Sequence[Settlement], places: list[int]) -> int:
    """How many of these go into one call: large results go in several."""
    size = 0
    for many, place in enumerate(places[:MOST_A_CALL]):
        size += len(settlements[place].result_json)
        if size > MOST_BYTES_A_CALL and many:
            return many
    return MOST_A_CALL


def released(one: Claimed | Broken) -> Settlement:
    """As if it had never been claimed."""
    job = one.job if isinstance(one, Claimed) else None
    return Settlement(
        lease=one.lease,
        outcome="released",
        state="waiting",
        attempt=1 if job is None else job.attempt,
        errors=0 if job is None else job.errors,
        crashes=0 if job is None else job.crashes,
    )


def local(lease: Lease) -> str:
    """What BullMQ calls a leased job in its queue."""
    if lease.locator is None:
        return local_id(lease.queue, lease.id)
    id: str = lease.locator[0]
    return id


def _plain(done: Settlement) -> tuple[str, str, str, int | None] | None:
    """A settlement that a job's own fields have no say in."""
    lease, keep = done.lease, done.keep
    if lease.locator is None or not lease.locator[1] or done.state != "succeeded" or done.errors or done.crashes:
        return None
    if done.runs is not None or keep is None or keep.last is not None or keep.age_ms == 0:
        return None
    return (lease.locator[0], lease.token, done.result_json.decode(), keep.age_ms)


def _written(done: Settlement, now_ms: int, told: bool) -> dict[str, Any]:
    """A settlement as settle.lua takes it; what is None is left out."""
    ask: dict[str, Any] = {
        "id": local(done.lease),
        "token": done.lease.token,
        "state": done.state,
        "outcome": done.outcome,
        "errors": done.errors,
        "crashes": done.crashes,
    }
    if done.outcome == "succeeded":
        ask["result"] = done.result_json.decode()
    if done.error is not None:
        ask["error"] = done.error
    if done.tracebacks is not None:
        ask["tracebacks"] = text(done.tracebacks)
    if done.due is not None:
        ask["due"] = done.due.resolve(now_ms)
    if done.keep is not None:
        ask["keep"] = _keep(done.keep)
    if done.runs is not None:
        ask["runs"] = done.runs
        ask["keep_run"] = {"age": RUNS_KEPT_MS}
        ask["slot"] = None if done.rearm is None else done.rearm.slot_ms
    if told:
        ask["facts"] = [(f.type, f.attempt, text(f.data)) for f in settlement_events(done, now_ms)]
    return ask


def _keep(keep: Keep) -> dict[str, int]:
    return {name: value for name, value in (("last", keep.last), ("age", keep.age_ms)) if value is not None}


def reported(report: Report) -> dict[str, Any]:
    """A report as report.lua takes it."""
    ask: dict[str, Any] = {
        "id": local(report.lease),
        "token": report.lease.token,
        "lines": report.lines[-LOG_LINES_KEPT:],
    }
    if report.progress is not None:
        ask["progress"] = text(_progress(report.progress))
        ask["data"] = text({"value": report.progress.value, "message": report.progress.message})
    return ask


def _progress(progress: Progress) -> Any:
    """A number, as Node's users write it; with a word about it, an object."""
    if progress.message is None:
        return progress.value
    return {"value": progress.value, "message": progress.message}
