"""The contenders of the benchmark on MongoDB: each does what its shape says, for few jobs on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from rich.console import Console

from bench.child import READY
from bench.contenders import is_there
from bench.far import far
from bench.figures import Results
from bench.ground import run_one
from bench.grounds import GROUNDS
from bench.lab import Lab
from bench.metering import followed
from bench.mongo.contenders import AGENDA, AGENDA_AS_IT_COMES, AGENDA_OFTEN, FULL, LEAN, MONQUE, PEERS, filled
from bench.mongo.copies import multiply_finished
from bench.mongo.ground import MONGO
from bench.peers.peer import Peer
from bench.recovery import again
from bench.scale import QUICK
from bench.servers import Servers
from bench.watch import Watch
from jobmill.stores.mongo.url import MongoUrl

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

FEW = 30
SLOTS = 5


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Servers(None) as servers:
        place = tmp_path_factory.mktemp("bench")
        yield Lab("drain", QUICK, ("mongo",), 1, place, Results(), Watch(Console(quiet=True)), servers)


@pytest.fixture(params=PEERS, ids=lambda peer: peer.name)
def peer(request: pytest.FixtureRequest) -> Peer:
    chosen: Peer = request.param
    if (why := chosen.missing()) is not None:
        pytest.skip(why)
    return chosen


def _documents(url: str, *statuses: str) -> list[dict[str, Any]]:
    """Of ours and Monque's, which are in one collection."""
    place = MongoUrl.read(url)
    with MongoClient[dict[str, Any]](place.driver_url) as client:
        return list(client[place.database][place.collection].find({"status": {"$in": statuses}}))


def test_names_are_unique_and_guarantees_begin_with_what_becomes_of_the_job() -> None:
    names = [peer.name for peer in (*PEERS, AGENDA_OFTEN, AGENDA_AS_IT_COMES)]
    assert len(set(names)) == len(names)
    assert {peer.about.guarantee.partition(":")[0] for peer in PEERS} == {"kept", "repeated"}
    assert MONGO in GROUNDS
    assert MONGO.peers == (LEAN, MONQUE, AGENDA)


def test_both_sets_of_indexes_are_measured_whoever_is_asked_for(lab: Lab) -> None:
    assert is_there(lab, LEAN)
    assert is_there(lab, FULL)


def test_all_that_was_filled_is_drained(lab: Lab, peer: Peer) -> None:
    with filled(lab, peer, FEW) as url:
        ran, before, after = followed(peer.drain(url, FEW, SLOTS), lab.servers.mongo.cpu_seconds)
        assert (ran.jobs, after > before) == (FEW, True)
        if peer is not AGENDA:
            assert len(_documents(url, "completed")) == FEW


def test_what_is_enqueued_waits(lab: Lab, peer: Peer) -> None:
    with filled(lab, peer, 0) as url:
        ran, *_ = followed(peer.enqueue(url, 3, FEW, 10), lambda: None)
        assert ran.jobs == FEW
        if peer.bulk is not None:
            ran, *_ = followed(peer.bulk(url, 10, FEW, 10), lambda: None)
            assert ran.jobs == FEW
            assert len(_documents(url, "pending")) == 2 * FEW


def test_an_idle_worker_starts_what_comes(lab: Lab, peer: Peer) -> None:
    with filled(lab, peer, 0) as url, peer.pickup_work(url, FEW, 20, SLOTS) as worker:
        worker.wait_for(READY)
        pickups = peer.pickup_enqueue(url, FEW, 1)
        pickups.started = worker.result()
    assert min(pickups.latencies_ms(pickups.called)) > 0


def test_a_killed_worker_s_job(lab: Lab, peer: Peer, tmp_path: Path) -> None:
    """Our lease ends after a quarter of a minute; the others' locks do not while a test may wait."""
    patience = 60 if peer in (LEAN, FULL) else 1
    with filled(lab, peer, 0) as url:
        seconds = again(peer, url, tmp_path / "started", patience)
    assert (seconds is not None) == (peer in (LEAN, FULL))


def test_all_of_a_drain_goes_through_a_proxy(lab: Lab, peer: Peer) -> None:
    """A driver that knew of the set would learn where the server really is."""
    with filled(lab, peer, FEW) as near, far(near, 0.05) as away:
        ran, *_ = followed(peer.drain(away, FEW, 1), lambda: None)
    assert ran.seconds > FEW * 0.05


def test_a_long_history_is_made_once_and_does_not_count_as_live(lab: Lab) -> None:
    with MONGO.kept(lab, 2_500) as url, MONGO.looking(url) as is_left:
        MONGO.make_ready(url)
        assert not is_left()
        assert len({one["updatedAt"] for one in _documents(url, "completed")}) == 2_500
        LEAN.fill(url, 1)
        assert is_left()
    with MONGO.kept(lab, 2_500) as again_asked:
        assert again_asked == url
        assert len(_documents(url, "completed", "pending")) == 2_501


def test_copies_keep_the_indexes_that_the_url_names(lab: Lab) -> None:
    with lab.servers.mongo.database(indexes="monque") as url:
        run_one(FULL, url)
        place = MongoUrl.read(url)
        with MongoClient[dict[str, Any]](place.driver_url) as client:
            jobs = client[place.database][place.collection]
            before = jobs.index_information()
            multiply_finished(url, 10)
            assert (jobs.index_information(), jobs.count_documents({})) == (before, 10)
