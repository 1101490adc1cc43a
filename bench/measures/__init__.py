"""The measures, in the order in which they run: each records figures, and judges them by its targets."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bench.figures import Results, Verdict
from bench.lab import Lab
from bench.measures import beside, depth, drain, enqueue, pickup


class Measure(Struct, frozen=True):
    """What is done, and what is said about it."""

    about: str
    run: Callable[[Lab], None]
    verdicts: Callable[[Results], list[Verdict]]


MEASURES = {
    "drain": Measure("one worker process runs no-op jobs that wait in a file", drain.run, drain.verdicts),
    "enqueue": Measure("one by one, from concurrent callers, in bulk", enqueue.run, enqueue.verdicts),
    "pickup": Measure("from an enqueue to the start of its job in an idle worker", pickup.run, pickup.verdicts),
    "depth": Measure("cost per job while many others wait, or are delayed", depth.run, depth.verdicts),
    "beside": Measure("a worker beside one CPU-bound sync handler", beside.run, beside.verdicts),
}
