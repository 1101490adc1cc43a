"""The command: `python3 dev.py bench`; see bench/README.md."""

from __future__ import annotations

import compileall
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from msgspec import structs
from rich.console import Console

from bench import machine, measures, report, targets
from bench.against import run as against_run
from bench.contenders import CONTENDERS
from bench.figures import Results
from bench.grounds import GROUNDS, Grounds
from bench.lab import FULL, QUICK, TIME_OVER, Lab, Run
from bench.peers import crontab, node

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STORES = tuple(GROUNDS)
NAMES = {one.name for all in CONTENDERS.values() for one in all} - {"jobmill"}
PEERS = sorted({*NAMES, *(name.partition(",")[0] for name in NAMES)} - {"jobmill"})
INTERRUPTED = 130
#: Where stdout is no terminal.
WIDTH = 150

Folder = click.Path(file_okay=False, path_type=Path)
File = click.Path(dir_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--quick", is_flag=True, help="A first look, within three minutes: drain, enqueue and pickup.")
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), help="Only this store; repeatable.")
@click.option(
    "--measure", "kinds", multiple=True, type=click.Choice(list(measures.MEASURES)), help="Only this; repeatable."
)
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Beside us only this; repeatable.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Maximum number of rounds (5; quick 2; --against 7, with --instructions 1).",
)
@click.option("--seed", default=1, help="For the gaps between single enqueues.")
@click.option("--dir", "place", type=Folder, help="Folder for the databases: on a disk that counts.")
@click.option("--out", type=Folder, help="Folder for the report. A full run of everything writes it to docs.")
@click.option("--against", metavar="COMMIT", help="Compare the working tree with this commit instead.")
@click.option("--instructions", is_flag=True, help="With --against: count the client's instructions, nothing else.")
@click.option("--json", "json_file", type=File, help="File for all figures.")
def main(
    quick: bool,
    stores: tuple[str, ...],
    kinds: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int | None,
    seed: int,
    place: Path | None,
    out: Path | None,
    against: str | None,
    instructions: bool,
    json_file: Path | None,
) -> None:
    """Measure Jobmill and its peers side by side, or the working tree beside an older commit.

    Exits with 0 when everything was measured, whether or not targets were met; with 1 when a measure failed, or when a
    limit of --against was missed; with 130 when it was interrupted. It shows and keeps what was measured until then.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for folder in ("src", "bench"):  # else every process that is measured compiles its modules again
        compileall.compile_dir(ROOT / folder, quiet=2)
    if against is not None:
        wanted = [store for store in against_run.STORES if not stores or store in stores]
        rounds = rounds or (1 if instructions else 7)
        sys.exit(against_run.compare(against, wanted, kinds, rounds, instructions, place, json_file))
    scale = QUICK if quick else FULL
    if kinds:  # however long they take
        scale = structs.replace(scale, total_s=FULL.total_s)
    if rounds is not None:
        scale = structs.replace(scale, rounds=rounds)
    if out is None and not (quick or stores or kinds or peers):
        out = DOCS
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.monotonic()

    def progress(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        console.print(f"{minutes:02}:{seconds:02} {text}")

    with Grounds(place) as grounds:
        run = Run(
            scale=scale, grounds=grounds, results=Results(), seed=seed, peers=peers, progress=progress, began=began
        )
        sys.exit(_bench(run, stores or STORES, kinds, out, json_file))


def _bench(run: Run, stores: Sequence[str], kinds: Sequence[str], out: Path | None, json_file: Path | None) -> int:
    described = machine.describe(run.grounds.folder)
    chosen = measures.chosen(kinds, stores, run.scale.quick)
    about, interrupted = _measure(run, chosen)
    described |= run.grounds.describe()
    if node.was_used():
        described["node"] = node.versions()
    described["load average"] += f" before, {machine.load()} after"
    verdicts = targets.verdicts(run.results, [name for name, _, _ in chosen])
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    report.show(console, run.results, verdicts)
    if out is not None or json_file is not None:
        contenders = {store: tuple(one.about for one in CONTENDERS[store] if run.wants(one)) for store in stores}
        if "crontab" in stores:
            contenders["crontab"] = (crontab.ABOUT, *contenders["crontab"])
        made = report.Report(
            date=datetime.now(UTC).astimezone().date().isoformat(),
            stores=tuple(stores),
            minutes=(time.monotonic() - run.began) / 60,
            seed=run.seed,
            machine=described,
            scale=run.scale,
            contenders=contenders,
            measures=about,
            verdicts=verdicts,
            figures=run.results.figures,
            faults=run.results.faults,
            missing=run.results.missing,
            interrupted=interrupted,
        )
        if json_file is not None:
            report.write_data(made, json_file)
        if out is not None:
            console.print("", *report.write(made, out), sep="\n")
    if interrupted:
        return INTERRUPTED
    return 1 if run.results.faults else 0


def _measure(run: Run, chosen: Sequence[tuple[str, str, measures.Measure]]) -> tuple[dict[str, str], bool]:
    """All measures, also after one failed: what each did, and whether somebody interrupted.

    Each gets a share of the time that is left, by its weight: time that one does not need is there for the later ones.
    """
    about: dict[str, str] = {}
    try:
        for store in {store for _, store, _ in chosen}:
            for contender in CONTENDERS[store]:
                run.wants(contender)  # peers are installed before the time runs
        run.began = time.monotonic()
        for number, (name, store, measure) in enumerate(chosen):
            left = run.began + run.scale.total_s - time.monotonic()
            if left <= 0:
                run.results.missing[name] = TIME_OVER
                continue
            weight = measure.weight / sum(one.weight for _, _, one in chosen[number:])
            about[name] = measure.about
            try:
                lab = Lab(run, name, run.grounds[store], left * weight)
                measure.run(lab)
                about[name] += f"; {lab.rounds} round{'s' * (lab.rounds != 1)}"
            except Exception:
                run.results.fault(name, traceback.format_exc())
    except KeyboardInterrupt:
        return about, True
    return about, False


if __name__ == "__main__":
    main.main(prog_name="dev.py bench")
