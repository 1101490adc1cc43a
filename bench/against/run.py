"""Rounds that alternate between two trees, the table of what they came to, and the verdict."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from bench.against.trees import Tree, checkout, working_tree
from bench.against.wire import Counts, counting
from bench.child import BEGUN, Child
from bench.grounds import SERVER as SERVER_CPU
from bench.grounds import Ground, Grounds
from bench.measures import SERVERS

STORES = ("memory", "sqlite", "postgres", "redis", "mongo")
MEASURES = ("drain", "enqueue", "pickup")
PROBE = Path(__file__).with_name("probe.py")
CLIENT, INSTRUCTIONS, SERVER = "client CPU us/job", "client instructions/job", SERVER_CPU
STATEMENTS, TRIPS, RATE = "statements/job", "round trips/job", "jobs/s"
UNITS = (CLIENT, INSTRUCTIONS, SERVER, STATEMENTS, TRIPS, RATE)
MAX_COST, MAX_MONGO_DRAIN, MIN_RATE = 1.03, 1.10, 0.90
#: It counts instructions, also of child processes. It makes Python about 50 times slower.
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--trace-children=yes", "-q")


class Case(Struct, frozen=True):
    """One thing to measure: what the probe is asked, and how many jobs take about two seconds on each store."""

    name: str
    asked: dict[str, Any]
    jobs: dict[str, int]


CASES = (
    Case(
        "drain",
        {"measure": "drain"},
        {"memory": 60_000, "sqlite": 40_000, "postgres": 30_000, "redis": 40_000, "mongo": 10_000},
    ),
    Case(
        "enqueue, lone caller",
        {"measure": "enqueue"},
        {"memory": 20_000, "sqlite": 2_000, "postgres": 1_500, "redis": 4_000, "mongo": 800},
    ),
    Case(
        "enqueue, 50 callers",
        {"measure": "enqueue", "callers": 50},
        {"memory": 40_000, "sqlite": 20_000, "postgres": 20_000, "redis": 30_000, "mongo": 8_000},
    ),
    Case(
        "enqueue, 1,000 a call",
        {"measure": "enqueue", "batch": 1_000},
        {"memory": 80_000, "sqlite": 60_000, "postgres": 60_000, "redis": 60_000, "mongo": 20_000},
    ),
    Case("pickup", {"measure": "pickup"}, dict.fromkeys(STORES, 150)),
)


def limit_of(store: str, case: str, unit: str) -> float | None:
    """The largest ratio new/old that is allowed (for jobs/s: the smallest); None where there is no limit."""
    if unit in (RATE, STATEMENTS):
        return MIN_RATE if unit == RATE else None
    return MAX_MONGO_DRAIN if (store, case) == ("mongo", "drain") else MAX_COST


class Line(Struct):
    """One unit of one case on one store: the figures of each round, by tree."""

    store: str
    case: str
    unit: str
    old: list[float]
    new: list[float]
    limit: float | None = None

    @property
    def ratios(self) -> list[float]:
        """New/old, round by round: what slows the whole machine for a while cancels out."""
        return [new / old for old, new in zip(self.old, self.new, strict=True) if old]

    @property
    def best(self) -> float | None:
        """New/old of the best round of each: a busy machine makes rounds worse, never better."""
        best = max if self.unit == RATE else min
        return best(self.new) / best(self.old) if best(self.old) else None

    @property
    def is_met(self) -> bool:
        """Whether the median of the ratios keeps the limit."""
        if self.limit is None or not self.ratios:
            return True
        ratio = statistics.median(self.ratios)
        return ratio >= self.limit if self.unit == RATE else ratio <= self.limit


def compare(
    commit: str,
    stores: Sequence[str],
    measures: Sequence[str],
    rounds: int,
    counts_instructions: bool,
    place: Path | None,
    out: Path | None,
) -> int:
    """Measure both trees, show the table, and answer the exit code: 1 when a limit is missed."""
    if counts_instructions and shutil.which(VALGRIND[0]) is None:
        raise click.UsageError("--instructions needs valgrind: install it with the package manager of your system")
    progress = Console(stderr=True, highlight=False)
    trees = (checkout(commit), working_tree())
    cases = [case for case in CASES if case.asked["measure"] in (measures or MEASURES)]
    lines: list[Line] = []
    with Grounds(place) as grounds:
        for store in stores:
            side = Side(grounds[store], grounds.folder, counts_instructions)
            for case in cases:
                lines += _measure(side, case, trees, rounds, progress)
    show(Console(width=None if sys.stdout.isatty() else 150, highlight=False), lines, commit)
    if out is not None:
        written = [
            structs.asdict(line) | {"ratios": line.ratios, "best": line.best, "met": line.is_met} for line in lines
        ]
        out.write_text(json.dumps({"against": commit, "lines": written}, indent=1))
    return int(not all(line.is_met for line in lines))


def _measure(side: Side, case: Case, trees: Sequence[Tree], rounds: int, progress: Console) -> list[Line]:
    store = side.store
    lines = {unit: Line(store, case.name, unit, [], [], limit_of(store, case.name, unit)) for unit in UNITS}
    for number in range(rounds):
        progress.print(f"{store}, {case.name}: round {number + 1} of {rounds}")
        for tree in trees if number % 2 else reversed(trees):
            for unit, value in side.figures(tree, case).items():
                getattr(lines[unit], tree.name).append(value)
    return [line for line in lines.values() if line.old]


class Side:
    """The probe on one store."""

    def __init__(self, ground: Ground, folder: Path, counts_instructions: bool = False) -> None:
        self.store = ground.name
        self._ground = ground
        self._folder = folder
        self._counts_instructions = counts_instructions
        self._compiled: set[tuple[Path, str]] = set()

    def figures(self, tree: Tree, case: Case) -> dict[str, float]:
        """CPU and jobs/s of a run that nothing disturbs, and the counts of another run; or instructions alone."""
        jobs = case.jobs[self.store]
        if self._counts_instructions:
            few = max(jobs // 20, 50)
            self._compile(tree, case, few)
            fewer, more = (self._instructions(tree, case, few * times) for times in (1, 3))
            return {INSTRUCTIONS: (more - fewer) / (2 * few)}
        with self._ground.fresh(self._ground.ours) as url:
            ran, before, after = self._probe(tree, case, jobs, url, False, self._cpu_us)
        found = {CLIENT: ran["cpu_s"] / jobs * 1e6, RATE: jobs / ran["seconds"]}
        if self.store in SERVERS:
            found[SERVER] = (after - before) / jobs
        if self.store != "memory":
            counted = self._counted_on_wire if self.store in SERVERS else self._counted_inside
            found |= counted(tree, case, jobs // 4)  # the counts need fewer
        return found

    def _compile(self, tree: Tree, case: Case, jobs: int) -> None:
        """Run the probe once, uncounted: the first run compiles modules, which takes more than many jobs."""
        if (tree.root, case.name) not in self._compiled:
            with self._ground.fresh(self._ground.ours) as url:
                self._probe(tree, case, jobs, url, False, lambda: 0.0)
            self._compiled.add((tree.root, case.name))

    def _instructions(self, tree: Tree, case: Case, jobs: int) -> int:
        """Of all its processes, with start and end: the difference of two runs has only what jobs cost."""
        with tempfile.TemporaryDirectory() as made, self._ground.fresh(self._ground.ours) as url:
            valgrind = [*VALGRIND, f"--cachegrind-out-file={made}/%p"]
            self._probe(tree, case, jobs, url, False, lambda: 0.0, valgrind)
            return sum(int(file.read_text().rpartition("summary:")[2].split()[0]) for file in Path(made).iterdir())

    def _counted_inside(self, tree: Tree, case: Case, jobs: int) -> dict[str, float]:
        with self._ground.fresh(self._ground.ours) as url:
            ran, _, _ = self._probe(tree, case, jobs, url, True, lambda: 0.0)
        return {STATEMENTS: ran["statements"] / jobs, TRIPS: ran["trips"] / jobs}

    def _counted_on_wire(self, tree: Tree, case: Case, jobs: int) -> dict[str, float]:
        with self._ground.fresh(self._ground.ours) as url, counting(self.store, url) as (near, counts):

            def now() -> Counts:
                return structs.replace(counts)

            _, before, after = self._probe(tree, case, jobs, near, False, now)
        statements, trips = after.statements - before.statements, after.trips - before.trips
        return {STATEMENTS: statements / jobs, TRIPS: trips / jobs}

    def _probe(
        self,
        tree: Tree,
        case: Case,
        jobs: int,
        url: str,
        count: bool,
        read: Callable[[], Any],
        within: Sequence[str] = (),
    ) -> tuple[dict[str, Any], Any, Any]:
        """Run the probe; what `read` says when its clock starts and when it has stopped."""
        asked = json.dumps({**case.asked, "jobs": jobs, "url": url, "count": count})
        command = [*within, str(tree.python), "-P", str(PROBE), asked]
        name = f"{self.store}: the probe"
        with Child(name, command, dict[str, Any], folder=self._folder, PYTHONHASHSEED="0") as process:
            process.wait_for(BEGUN)
            self._ground.settle(url)
            before = read()
            process.go_on()
            process.wait_for("ended")
            after = read()
            ran = process.result()
        if not Path(ran["tree"]).is_relative_to(tree.root):
            raise RuntimeError(f"expected jobmill of {tree.root}, got {ran['tree']}")
        return ran, before, after

    def _cpu_us(self) -> float:
        return self._ground.spent().get(SERVER_CPU, 0.0)


def show(console: Console, lines: Sequence[Line], commit: str) -> None:
    """The table, and a sentence for each limit that was missed."""
    table = Table(title=f"The working tree against {commit}; medians, ratio new/old with its range")
    for name in ("store", "measure", "figure", "old", "new", "new/old", "range", "best", "limit", ""):
        table.add_column(name, justify="left" if name in ("store", "measure", "figure", "") else "right")
    for line in lines:
        ratios = line.ratios
        median = f"{statistics.median(ratios):.3f}" if ratios else "-"
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else ""
        best = "" if line.best is None else f"{line.best:.3f}"
        limit = "" if line.limit is None else f"{line.limit:.2f}"
        verdict = ("ok" if line.is_met else "MISSED") if limit and ratios else ""
        old, new = statistics.median(line.old), statistics.median(line.new)
        table.add_row(
            line.store, line.case, line.unit, _number(old), _number(new), median, spread, best, limit, verdict
        )
    console.print(table)
    missed = [line for line in lines if not line.is_met]
    for line in missed:
        console.print(f"missed: {line.store}, {line.case}, {line.unit}: {statistics.median(line.ratios):.3f}")
    console.print(f"{len(missed)} of {sum(line.limit is not None for line in lines)} limits missed")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"
