"""The command: `python3 dev.py bench [--quick] [--store NAME] [--measure NAME] [--peer NAME] [--rounds N]`."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from msgspec import structs
from rich.console import Console

from bench import ceiling, guarantees, machine
from bench.against import run as against_run
from bench.against.run import Limits
from bench.child import Broken
from bench.contenders import is_there
from bench.crontab import contenders as on_crontab
from bench.figures import Results
from bench.grounds import GROUNDS, grounds
from bench.lab import RUN_IS_OVER, Lab
from bench.measures import KINDS, MEASURES, chosen
from bench.ours import about
from bench.ours import crontab as our_crontab
from bench.peers import (
    agenda_mongo,
    bare_mongo,
    bare_postgres,
    bare_redis,
    bare_sqlite,
    bullmq_node_redis,
    graphile_postgres,
    huey_sqlite,
    mongodb_cron,
    monque_mongo,
    node,
)
from bench.peers.about import About
from bench.postgres import contenders as on_postgres
from bench.redis import contenders as on_redis
from bench.report import Report, show, write
from bench.scale import FULL, QUICK, QUICK_SECONDS, Scale, seconds
from bench.servers import Servers
from bench.timetable import Timetable
from bench.watch import Watch

RESULTS = Path(__file__).parent / "results"
STORES = ("sqlite", "memory", "postgres", "redis", "mongo", "crontab")
CONTENDERS = {
    "sqlite": (about.ON_SQLITE, bare_sqlite.ABOUT, huey_sqlite.ABOUT),
    "memory": (),
    "postgres": (
        about.ON_POSTGRES,
        bare_postgres.ABOUT,
        *(peer.about for peer in on_postgres.PLAIN if peer is not on_postgres.OURS),
    ),
    "redis": (
        about.ON_REDIS,
        bare_redis.ABOUT,
        ceiling.ABOUT,
        *(peer.about for peer in on_redis.PEERS if peer is not on_redis.OURS),
    ),
    "mongo": (about.ON_MONGO, bare_mongo.ABOUT, monque_mongo.ABOUT, agenda_mongo.ABOUT),
    "crontab": (our_crontab.ABOUT, mongodb_cron.ABOUT),
}
#: All of a name, or what stands before its first comma, for all that have it.
NAMES = [peer.name for ground in GROUNDS for peer in ground.peers if peer is not ground.ours]
NAMES += [peer.name for peer in (monque_mongo.ABOUT, agenda_mongo.ABOUT, mongodb_cron.ABOUT)]
PEERS = sorted({*NAMES, *(name.partition(",")[0] for name in NAMES)})
ON_NODE = {
    "postgres": graphile_postgres.ABOUT.name,
    "redis": bullmq_node_redis.ABOUT.name,
    "mongo": agenda_mongo.ABOUT.name,
    "crontab": mongodb_cron.ABOUT.name,
}
#: Of the rest there is as much in a quick run as was asked for.
FIRST_LOOK = (
    "drain, enqueue and pickup beside the peers that our targets name, the drain at one number of slots beside all; "
    "other measures, and peers in more than that, only when they are named"
)
INTERRUPTED = 130
#: Where stdout is no terminal.
WIDTH = 150

Folder = click.Path(file_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help=f"A first look, within three minutes: {FIRST_LOOK}.")
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), help="Only this store; repeatable.")
@click.option("--measure", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this; repeatable.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Beside us only this; repeatable.")
@click.option("--rounds", type=click.IntRange(1), help=f"At most so often ({FULL.rounds}; {QUICK.rounds}).")
@click.option("--seed", default=1, show_default=True, help="For the gaps between single enqueues.")
@click.option("--dir", "place", type=Folder, help="Where the databases lie meanwhile: a disk that counts.")
@click.option(
    "--against", metavar="COMMIT", help="Measure the working tree beside this commit instead; see bench/README.md."
)
@click.option("--max-cpu", default=1.03, show_default=True, help="With --against: CPU per job, new/old, at most.")
@click.option("--max-trips", default=1.03, show_default=True, help="With --against: round trips per job, at most.")
@click.option("--max-mongo-drain", default=1.1, show_default=True, help="With --against: both, for MongoDB's drain.")
@click.option("--min-rate", default=0.9, show_default=True, help="With --against: jobs/s, new/old, at least.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="With --against: figures.")
@click.option("--out", type=Folder, help="Keep the results here; those of all measures in full go to bench/results.")
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
    max_cpu: float,
    max_trips: float,
    max_mongo_drain: float,
    min_rate: float,
    json_file: Path | None,
) -> None:
    """Measure Jobmill, its peers and the bare database side by side.

    Exits with 0 when everything was measured, whether or not the targets were met; with 1 when a measure broke; with
    130 when it was interrupted. What was measured until then is shown, and kept, in each case.
    """
    if against is not None:
        limits = Limits(cpu=max_cpu, trips=max_trips, mongo_drain=max_mongo_drain, rate=min_rate)
        wanted = [store for store in against_run.STORES if not stores or store in stores]
        sys.exit(
            against_run.compare(against, wanted, kinds or against_run.MEASURES, rounds or 7, limits, place, json_file)
        )
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = structs.replace(scale, rounds=rounds)
    if out is None and not (quick or kinds or peers):
        out = RESULTS
    names = chosen(kinds or KINDS, stores or STORES)
    if quick and not kinds:
        names = [name for name in names if name in QUICK_SECONDS]
    sys.exit(_bench(scale, stores or STORES, names, peers, seed, place, out))


def _bench(
    scale: Scale,
    stores: Sequence[str],
    names: Sequence[str],
    peers: Sequence[str],
    seed: int,
    place: Path | None,
    out: Path | None,
) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    results = Results()
    with (
        tempfile.TemporaryDirectory(prefix="jobmill-bench-", dir=place) as folder,
        Servers(place) as servers,
        Watch(Console(stderr=True)) as watch,
    ):
        described = machine.describe(Path(folder))
        labs = {name: Lab(name, scale, stores, seed, Path(folder), results, watch, servers, peers) for name in names}
        interrupted = _measure(labs, scale, results, watch)
        described |= servers.describe() | _on_node(stores, labs, results)
    described["load average"] += f" before, {machine.load()} after"
    _judge(names, results)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    show(console, results)
    if out is not None:
        report = Report(
            date=datetime.now(UTC).astimezone().date().isoformat(),
            stores=tuple(stores),
            minutes=(time.monotonic() - began) / 60,
            incomplete=_incomplete(interrupted, results),
            seed=seed,
            machine=described,
            scale=scale,
            contenders=tuple(_contenders(stores, labs)),
            measures={name: _about(name, lab) for name, lab in labs.items()},
            verdicts=results.verdicts,
            figures=results.figures,
            faults=results.faults,
            missing=results.missing,
            guarantees={store: guarantees.words(CONTENDERS[store]) for store in stores},
        )
        name = report.date if set(stores) == set(STORES) else "-".join([report.date, *stores])
        console.print("", *write(report, out, name), sep="\n")
    if interrupted:
        return INTERRUPTED
    return 1 if results.faults else 0


def _contenders(stores: Sequence[str], labs: dict[str, Lab]) -> Iterator[About]:
    """Those of which the report tells: ourselves, and who was asked for."""
    for store in stores:
        for one in CONTENDERS[store]:
            if one.package == "jobmill" or any(lab.wants(one.name) for lab in labs.values()):
                yield one


def _on_node(stores: Sequence[str], labs: dict[str, Lab], results: Results) -> dict[str, str]:
    wanted = [peer for store, peer in ON_NODE.items() if store in stores and any(x.wants(peer) for x in labs.values())]
    there = [peer for peer in wanted if peer not in results.missing]
    return {"node": node.versions()} if there else {}


def _incomplete(interrupted: bool, results: Results) -> str | None:
    """Why there is less than was asked for."""
    if interrupted:
        return "it was interrupted"
    missing = [f"{who} was not measured: {why}" for who, why in results.missing.items()]
    return "; ".join([*missing, *(f"{name} broke" for name in results.faults)]) or None


def _about(name: str, lab: Lab) -> str:
    """What a measure measures, and how often that was done."""
    rounds = f"; {lab.rounds} round{'s' * (lab.rounds > 1)} in {lab.took_s:.0f} s" if lab.rounds else ""
    return MEASURES[name].about + rounds


def _measure(labs: dict[str, Lab], scale: Scale, results: Results, watch: Watch) -> bool:
    """All measures, also after one broke; whether somebody interrupted."""
    try:
        for lab in list(labs.values())[:1]:
            _find_peers(lab)
        planned = {name: seconds(scale, name) for name in labs}
        watch.plan(planned)
        timetable = Timetable(planned, scale.total_s)
        for name, lab in labs.items():
            watch.measure(name)
            lab.budget = timetable.begin(name)
            if lab.budget.is_run_over():
                results.missing[name] = RUN_IS_OVER
            else:
                _run(name, lab)
    except KeyboardInterrupt:
        return True
    return False


def _find_peers(lab: Lab) -> None:
    """Who is wanted is installed before the time runs; who cannot be had is known from then on."""
    for ground in grounds(lab):
        for peer in ground.peers:
            is_there(lab, peer)
    if "crontab" in lab.stores:
        is_there(lab, on_crontab.NODE)


def _run(name: str, lab: Lab) -> None:
    began = time.monotonic()
    try:
        MEASURES[name].run(lab)
    except Broken as error:
        lab.results.fault(name, str(error))
    except Exception:
        lab.results.fault(name, traceback.format_exc())
    finally:
        lab.took_s = time.monotonic() - began


def _judge(names: Sequence[str], results: Results) -> None:
    for name in names:
        if results.of(name):
            results.verdicts += [structs.replace(one, measure=name) for one in MEASURES[name].verdicts(results)]


if __name__ == "__main__":
    command: Any = main
    command()
