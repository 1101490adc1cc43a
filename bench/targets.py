"""What we want the figures to be, and why a target is missed where somebody has looked into it."""

from __future__ import annotations

from fnmatch import fnmatchcase as fnmatch
from typing import Any, Literal

from msgspec import Struct, structs

from bench.figures import CLIENT, RATE, Figure, Results, Verdict, judge, ratios, values_of
from bench.grounds import SERVER, WAL
from bench.measures import CORES, EACH, LANES, MS_PER_POLL, NO_LANES, OTHERS, P50, P95, PLAIN, SHARED, TOGETHER

How = Literal["at least", "at most", "below"]
OURS, NODE, PORT = "jobmill", "bullmq, Node.js", "bullmq, Python"
CRONTAB, CRON = "jobmill's crontab", "mongodb-cron, Node.js"
AS_MANY = "against as many schedulers of mongodb-cron"
LONE, BULK = "one by one", "1,000 a call"
NOT_YET = "not yet looked into"
COLLIDE = "claims of several processes look at the same jobs first, and each gets only some of them"
BY_SLOT = (
    "for each job with a lane, the server does one more pop, one more write and one more event of BullMQ: half as many "
    "instructions again. Without lanes, a job took 56 us when the target was set, and takes 35 us now"
)
BY_EDGE = "an edge is a document: to set it takes a fifth of a plain job; a call with edges has three round trips more"
#: A machine is idle while other processes use less.
IDLE_CORES = 0.2


class Target(Struct, frozen=True):
    """A figure of ours, alone or divided by another one, and its bound."""

    measure: str
    text: str
    how: How
    bound: float
    unit: str = "x"
    #: (what, who, unit) of the figure; a star stands for anything, and the largest median of all that match counts.
    ours: tuple[str, str, str] = ("", OURS, RATE)
    theirs: tuple[str, str, str] | None = None
    why_missed: str = NOT_YET
    #: Judged only where other processes used few cores meanwhile (`CORES`).
    needs_idle: bool = False
    #: The best round counts: what else runs on the machine makes rounds worse, never better.
    is_best: bool = False

    def verdict(self, results: Results) -> Verdict:
        """What it came to."""
        above = _figure(results, self.measure, self.ours)
        values = values_of(above)
        if self.theirs is not None:
            values = ratios(above, _figure(results, self.measure, self.theirs))
        values = [min(values)] if self.is_best and values else values
        verdict = structs.replace(judge(self.text, values, self.how, self.bound, self.unit), measure=self.measure)
        busy = _figure(results, self.measure, ("*", OTHERS, CORES)) if self.needs_idle else None
        return verdict if busy is None or busy.median <= IDLE_CORES else structs.replace(verdict, met=None)


def _figure(results: Results, measure: str, wanted: tuple[str, str, str]) -> Figure | None:
    what, who, unit = wanted
    found = [one for one in results.of(measure, unit) if fnmatch(one.what, what) and fnmatch(one.who, who)]
    return max(found, key=lambda one: one.median, default=None)


def _drain(store: str, slots: int, text: str, theirs: str, bound: float, **more: Any) -> Target:
    at = f"{slots} slots"
    what = more.pop("what", at)
    title = f"drain at {slots} slot{'s' * (slots > 1)}, against {text}"
    return Target(
        f"{store} drain", title, "at least", bound, ours=(at, OURS, RATE), theirs=(what, theirs, RATE), **more
    )


def _cost(store: str, slots: int, text: str, unit: str, how: How, bound: float, of: str, theirs: str = "") -> Target:
    at = f"{slots} slots"
    other = (at, theirs, unit) if theirs else None
    return Target(f"{store} drain", text, how, bound, of, (at, OURS, unit), other)


def _enqueue(store: str, text: str, bound: float, what: str, theirs: tuple[str, str]) -> Target:
    return Target(f"{store} enqueue", text, "at least", bound, "x", (what, OURS, RATE), (*theirs, RATE))


def _pickup(store: str, bound: float, what: str, theirs: str = "") -> Target:
    text, other = f"idle pickup, p50 {what}{theirs and f', against {theirs}'}", (what, theirs, P50) if theirs else None
    unit = "x" if theirs else "ms"
    return Target(f"{store} pickup", text, "below", bound, unit, (what, OURS, P50), other)


def _depth(store: str, bound: float) -> Target:
    few, many = ("1,000 waiting", OURS, RATE), ("* delayed", OURS, RATE)
    text = "time per job while very many wait, against few"
    return Target(f"{store} depth", text, "at most", bound, "x", few, many)


def _scaling(store: str, processes: int) -> Target:
    many, one = ((f"{number} x 50 slots", OURS, RATE) for number in (processes, 1))
    bound, why = 0.75 if store == "sqlite" else 0.95, COLLIDE if store == "mongo" else NOT_YET
    return Target(f"{store} scaling", f"{processes} processes, against one", "at least", bound, "x", many, one, why)


def _p95(store: str, measure: str, text: str, bound: float, what: str, **more: Any) -> Target:
    return Target(f"{store} {measure}", f"{text}, p95", "below", bound, "ms", (what, OURS, P95), **more)


def _latency(store: str, cancel: float, result: float) -> list[Target]:
    return [
        _p95(store, "latency", "a cancelled handler is stopped", cancel, "cancel", is_best=True),
        _p95(store, "latency", "result() returns after the end", result, "result", is_best=True),
    ]


def _flows(store: str, settle: float) -> list[Target]:
    one_each = "a job is released by each settle: its row moves too, as at its enqueue"
    wanted = [(f"settle, {what}", settle, NOT_YET) for what in EACH if what != PLAIN]
    drain = BY_EDGE if store == "mongo" else NOT_YET
    wanted += [(f"drain, {what}", 1.3, drain) for what in EACH if what != PLAIN]
    return [
        Target(
            f"{store} flows",
            f"CPU per job: {what}, against nobody",
            "at most",
            bound,
            ours=(what, OURS, TOGETHER),
            theirs=(f"{what.partition(',')[0]}, {PLAIN}", OURS, TOGETHER),
            why_missed=one_each if "each" in what else why,
        )
        for what, bound, why in wanted
    ]


def _lanes(store: str, bound: float, thick: float = 0) -> list[Target]:
    return [
        Target(
            f"{store} lanes",
            f"CPU per job: {what}, {wait}, against no lanes",
            "at most",
            thick if thick and what == "1,000 lanes" else bound,
            ours=(f"{what}, {wait}", OURS, TOGETHER),
            theirs=(f"{NO_LANES}, {wait}", OURS, TOGETHER),
            why_missed=BY_SLOT if store == "redis" else NOT_YET,
        )
        for what in LANES
        if what != NO_LANES
        for wait in ("few wait", "many wait")
    ]


#: Why an operation is slow: by store, and by what the target is about.
MANY_COUNTS = "the server needs at least 2.2 ms to count 10,000 keys, and four full queues have ten such counts"
SLOW = {("mongo", "depths; and"): MANY_COUNTS}


def _operations(store: str) -> list[Target]:
    wanted = {"depths; [0-9]": ("depths()", 20), "depths; and": ("depths() with three more full queues (an aim)", 20)}
    wanted |= {"workers": ("workers()", 20), "page": ("a page of 50 jobs", 20)}
    wanted["dashboard"] = ("the slowest page of the dashboard", 100)
    return [
        _p95(store, "operations", text, bound, f"{what}*", why_missed=SLOW.get((store, what), NOT_YET), needs_idle=True)
        for what, (text, bound) in wanted.items()
    ]


TARGETS: tuple[Target, ...] = (
    _drain("sqlite", 50, "huey at its best", "huey", 8, what="*"),
    _cost("sqlite", 50, "CPU per job, drain at 50 slots (an aim)", CLIENT, "at most", 25, "us"),
    _enqueue("sqlite", "bulk enqueue, against one by one", 10, BULK, (LONE, OURS)),
    _enqueue("sqlite", "enqueue from 50 callers, against a lone one", 5, "50 callers", (LONE, OURS)),
    _pickup("sqlite", 5, "since its return"),
    _depth("sqlite", 1.3),
    _drain("postgres", 100, "pgqueuer at its best", "pgqueuer*", 2),
    _drain("postgres", 100, "procrastinate", "procrastinate", 25),
    _drain("postgres", 100, "graphile, local queue of 500", "graphile, local queue of 500", 0.95),
    _drain("postgres", 1, "pgqueuer", "pgqueuer", 1),
    _cost("postgres", 100, "WAL per job, drain at 100 slots (an aim)", WAL, "at most", 900, "B"),
    _enqueue("postgres", "bulk enqueue, against pgqueuer", 1, BULK, (BULK, "pgqueuer")),
    _enqueue("postgres", "enqueue one by one, against pgqueuer", 1, LONE, (LONE, "pgqueuer")),
    _pickup("postgres", 5, "since its return"),
    _pickup("postgres", 1.5, "since its return", "pgqueuer"),
    _depth("postgres", 1.3),
    *(_drain("redis", slots, "BullMQ on Node.js", NODE, bound) for slots, bound in ((1, 1.1), (50, 1), (200, 1))),
    *(_drain("redis", slots, "BullMQ's Python port", PORT, 8) for slots in (50, 200)),
    *(
        _cost("redis", slots, f"{whose} CPU at {slots} slots, against Node.js", unit, "below", 1, "x", NODE)
        for whose, unit in (("server", SERVER), ("client", CLIENT))
        for slots in (50, 200)
    ),
    *(
        Target("redis isolated", f"isolated handlers, {mode} against {text}", "at least", 3, "x", isolated, theirs)
        for mode, text, theirs in (
            ("True", "a fork for each job by one worker of rq", ("1 slots", "rq, Worker", RATE)),
            ("pool", "celery's prefork pool", ("10 slots", "celery, prefork", RATE)),
        )
        for isolated in [("10 slots", f"jobmill, isolate={mode}", RATE)]
    ),
    _enqueue("redis", "bulk enqueue, against addBulk on Node.js", 2, BULK, (BULK, NODE)),
    _enqueue("redis", "enqueue from 100 callers, against Node.js", 1, "100 callers", ("100 callers", NODE)),
    _pickup("redis", 2, "since the call"),
    _drain("mongo", 50, "a find-and-modify loop", "find and modify", 10),
    _drain("mongo", 50, "agenda", "agenda, Node.js", 8),
    _enqueue("mongo", "bulk enqueue, against one by one", 10, BULK, (LONE, OURS)),
    _pickup("mongo", 20, "since the call"),
    _depth("mongo", 1.5),
    *(
        Target(
            "crontab drain", f"drain at {at}, {AS_MANY}", "at least", bound, "x", (at, CRONTAB, RATE), (at, CRON, RATE)
        )
        for at, bound in (("concurrency 1", 1.3), ("concurrency 100", 3.0))
    ),
    *(_scaling(store, processes) for store in SHARED for processes in (2, 4)),
    *(target for store in ("sqlite", "postgres", "redis") for target in _latency(store, 100, 20)),
    *_latency("mongo", 600, 100),
    *(target for store in ("memory", "sqlite", "postgres", "redis", "mongo") for target in _operations(store)),
    *(
        target
        for store, bound in (("sqlite", 2.4), ("postgres", 2.4), ("redis", 1.2), ("mongo", 3.5))
        for target in _flows(store, bound)
    ),
    *_lanes("sqlite", 4, thick=6),
    *(target for store, bound in (("postgres", 3), ("redis", 1.4), ("mongo", 4.5)) for target in _lanes(store, bound)),
    Target("crontab idle", "an idle poll", "below", 2, "ms of server time", ("*", CRONTAB, MS_PER_POLL)),
)


def verdicts(results: Results, measures: list[str]) -> list[tuple[Verdict, str]]:
    """On each target of these measures, with the reason for a miss."""
    return [(one.verdict(results), one.why_missed) for one in TARGETS if one.measure in measures]
