"""The contenders of the benchmark on Redis: what the report tells about them, and which of them are asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from bench.contenders import is_there
from bench.figures import Results
from bench.lab import Lab
from bench.peers.peer import Peer
from bench.recovery import AGAIN, LONGEST_S, SECONDS, WHAT, verdicts
from bench.redis.contenders import NODE, OURS, PEERS, PYTHON
from bench.scale import QUICK
from bench.servers import Servers
from bench.watch import Watch

NAMES = [peer.name for peer in PEERS]
HUEY = next(peer for peer in PEERS if peer.name == "huey")


def _lab(place: Path, *peers: str) -> Lab:
    folder = Path(tempfile.mkdtemp(dir=place))
    return Lab("drain", QUICK, ("redis",), 1, folder, Results(), Watch(Console(quiet=True)), Servers(None), peers)


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_guarantee_begins_with_what_becomes_of_the_job(peer: Peer) -> None:
    about = peer.about
    assert about.guarantee.partition(":")[0] in ("kept", "repeated", "lost")
    assert about is OURS.about or (about.docs or "").startswith("https://")


def test_without_names_everybody_is_asked_for(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    assert all(lab.wants(peer.name) for peer in PEERS)


def test_a_name_asks_for_its_variants_and_a_variant_for_itself(tmp_path: Path) -> None:
    lab = _lab(tmp_path, "bullmq")
    assert [peer for peer in PEERS if lab.wants(peer.name)] == [NODE, PYTHON]
    lab = _lab(tmp_path, "bullmq, Python")
    assert [peer for peer in PEERS if lab.wants(peer.name)] == [PYTHON]


def test_we_are_measured_whoever_is_asked_for_and_the_others_are_not_missing(tmp_path: Path) -> None:
    lab = _lab(tmp_path, "rq")
    assert is_there(lab, OURS)
    assert not is_there(lab, HUEY)
    assert not lab.results.missing


def test_recovery_tells_seconds_or_that_it_never_came() -> None:
    results = Results()
    results.add("recovery", WHAT, OURS.name, AGAIN, 1)
    results.add("recovery", WHAT, OURS.name, SECONDS, 14.0)
    results.add("recovery", WHAT, HUEY.name, AGAIN, 0)
    told = {one.what.partition(":")[0]: one.measured for one in verdicts("recovery", results, NAMES)}
    assert told == {"jobmill": "14 s", "huey": f"never within {LONGEST_S:.0f} s"}
