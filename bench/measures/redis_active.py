"""Active on Redis: what single calls cost while many other jobs are running."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import run as in_child
from bench.figures import Results, Verdict, judge, percentile, told, values_of
from bench.lab import Lab, Turn
from bench.ours import active as ours
from bench.redis.contenders import OURS, filled

NAME = "redis active"
P50, P99, MOST = "p50 ms", "p99 ms", "most ms"
READ, CLAIM, SETTLE = "reading one job, as its caller sees it", "a claim, on the server", "a settlement, on the server"
EVENT, CHECK = "a report of progress, on the server", "a claim with its stall check, on the server"
RECOVERY = f"the same, of {ours.AT_ONCE} jobs when all leases have ended"


def run(lab: Lab) -> None:
    """With leases that last, and with leases that have ended."""
    turns: dict[str, Turn] = {"calls": partial(_calls, lab), "recovery": partial(_recovery, lab)}
    lab.alternate(turns)


def _calls(lab: Lab, _: Path) -> None:
    with filled(lab, OURS, 0) as url:
        one = in_child(ours.active, url=url, jobs=lab.scale.active)
    for what, values in (
        (READ, one.read),
        (CLAIM, one.claim),
        (SETTLE, one.settle),
        (EVENT, one.event),
        (CHECK, one.check),
    ):
        _record(lab, what, values)


def _recovery(lab: Lab, _: Path) -> None:
    with filled(lab, OURS, 0) as url:
        _record(lab, RECOVERY, in_child(ours.recovery, url=url, jobs=lab.scale.active).recovery)


def _record(lab: Lab, what: str, values: list[float]) -> None:
    lab.record(what, OURS.name, P50, percentile(values, 50))
    lab.record(what, OURS.name, P99, percentile(values, 99))
    lab.record(what, OURS.name, MOST, max(values))


def verdicts(results: Results) -> list[Verdict]:
    """Each by the longest or nearly the longest of its calls."""

    def values(what: str, unit: str) -> list[float]:
        return values_of(results.get(NAME, what, OURS.name, unit))

    return [
        judge("with 10,000 running: reading one job, p99", values(READ, P99), "below", 10, "ms"),
        judge("with 10,000 running: a claim, of server time, p99", values(CLAIM, P99), "below", 5, "ms"),
        judge("with 10,000 running: an event, of server time, p99", values(EVENT, P99), "below", 5, "ms"),
        judge("with 10,000 running: one stall check, of server time", values(CHECK, MOST), "below", 100, "ms"),
        told("with 10,000 running: a settlement, of server time, p99", values(SETTLE, P99), "ms"),
        told("with 10,000 ended leases: a stall check that takes 200 over", values(RECOVERY, MOST), "ms"),
    ]
