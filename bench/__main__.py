"""The command: `python3 dev.py bench [--quick] [--store NAME] [--measure NAME] [--rounds N]`."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec import structs
from rich.console import Console

from bench import machine
from bench.child import Broken
from bench.figures import Results
from bench.lab import Lab
from bench.measures import MEASURES
from bench.ours.about import ABOUT
from bench.peers import bare_sqlite, huey_sqlite
from bench.report import Report, show, write
from bench.scale import FULL, QUICK, Scale
from bench.watch import Watch

RESULTS = Path(__file__).parent / "results"
STORES = ("sqlite", "memory")
CONTENDERS = (ABOUT, bare_sqlite.ABOUT, huey_sqlite.ABOUT)
INTERRUPTED = 130
#: Where stdout is no terminal.
WIDTH = 150

Folder = click.Path(file_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Less of everything, within three minutes; for a first look.")
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), help="Only this store; repeatable.")
@click.option("--measure", "names", multiple=True, type=click.Choice(list(MEASURES)), help="Only this; repeatable.")
@click.option("--rounds", type=click.IntRange(1), help=f"How often each has its turn ({FULL.rounds}; {QUICK.rounds}).")
@click.option("--seed", default=1, show_default=True, help="For the gaps between single enqueues.")
@click.option("--dir", "place", type=Folder, help="Where the databases lie meanwhile: a disk that counts.")
@click.option("--out", type=Folder, help="Keep the results here; those of a whole full run go to bench/results.")
def main(
    quick: bool,
    stores: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int | None,
    seed: int,
    place: Path | None,
    out: Path | None,
) -> None:
    """Measure Jobmill, its peers and the bare database side by side.

    Exits with 0 when everything was measured, whether or not the targets were met; with 1 when a measure broke; with
    130 when it was interrupted. What was measured until then is shown, and kept, in each case.
    """
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = structs.replace(scale, rounds=rounds)
    if out is None and not (quick or stores or names):
        out = RESULTS
    sys.exit(_bench(scale, stores or STORES, names or tuple(MEASURES), seed, place, out))


def _bench(
    scale: Scale, stores: Sequence[str], names: Sequence[str], seed: int, place: Path | None, out: Path | None
) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    results = Results()
    with (
        tempfile.TemporaryDirectory(prefix="jobmill-bench-", dir=place) as folder,
        Watch(Console(stderr=True)) as watch,
    ):
        described = machine.describe(Path(folder))
        labs = {name: Lab(name, scale, stores, seed, Path(folder), results, watch) for name in names}
        interrupted = _measure(labs, results, watch)
    described["load average"] += f" before, {machine.load()} after"
    _judge(names, results)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    show(console, results)
    if out is not None:
        broken = ", ".join(f"{name} broke" for name in results.faults)
        report = Report(
            date=datetime.now(UTC).astimezone().date().isoformat(),
            minutes=(time.monotonic() - began) / 60,
            incomplete="it was interrupted" if interrupted else broken or None,
            seed=seed,
            machine=described,
            scale=scale,
            contenders=CONTENDERS,
            measures={name: MEASURES[name].about for name in names},
            verdicts=results.verdicts,
            figures=results.figures,
            faults=results.faults,
        )
        console.print("", *write(report, out), sep="\n")
    if interrupted:
        return INTERRUPTED
    return 1 if results.faults else 0


def _measure(labs: dict[str, Lab], results: Results, watch: Watch) -> bool:
    """All measures, also after one broke; whether somebody interrupted."""
    try:
        for name, lab in labs.items():
            watch.measure(name)
            try:
                MEASURES[name].run(lab)
            except Broken as error:
                results.faults[name] = str(error)
            except Exception:
                results.faults[name] = traceback.format_exc()
    except KeyboardInterrupt:
        return True
    return False


def _judge(names: Sequence[str], results: Results) -> None:
    for name in names:
        if results.of(name):
            results.verdicts += MEASURES[name].verdicts(results)


if __name__ == "__main__":
    command: Any = main
    command()
