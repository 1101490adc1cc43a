"""Recovery: how soon another worker starts a job again whose worker was killed, on each server."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import recovery
from bench.contenders import is_there
from bench.figures import Results, Verdict
from bench.grounds import GROUNDS, grounds
from bench.lab import Lab
from bench.recovery import Standing

NAME = "recovery"


def run(lab: Lab) -> None:
    """Once: it takes a minute and a half whatever comes."""
    lab.alternate({"all": partial(_recover, lab)}, rounds=1)


def _recover(lab: Lab, place: Path) -> None:
    """Everybody on all servers at the same time: there is nothing to do but to wait."""
    with ExitStack() as places:
        standing = []
        for ground in grounds(lab):
            there = [peer for peer in ground.peers if is_there(lab, peer)]
            urls = places.enter_context(ground.apart(lab, there))
            standing += [Standing(ground.who(peer), peer, url) for url, peer in urls.items()]
        recovery.measure(lab, standing, place)


def verdicts(results: Results) -> list[Verdict]:
    """What is told of each."""
    return recovery.verdicts(NAME, results, [ground.who(peer) for ground in GROUNDS for peer in ground.peers])
