"""SQLite under the benchmark: its contenders do what their shape says, for few jobs, and what they write is counted."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from msgspec import structs
from rich.console import Console

from bench import shares
from bench.child import READY
from bench.figures import Results
from bench.ground import Unmetered
from bench.grounds import servers
from bench.lab import Lab
from bench.measures import enqueue, written
from bench.metering import followed
from bench.peers.peer import Peer
from bench.recovery import again
from bench.scale import QUICK
from bench.servers import Servers
from bench.sqlite.contenders import HUEY, OURS, PEERS, filled
from bench.sqlite.files import looking, path_of
from bench.sqlite.ground import SQLITE
from bench.sqlite.written import written as counting
from bench.watch import Watch

pytestmark = [pytest.mark.slow, pytest.mark.stores("sqlite")]

FEW = 30
SLOTS = 5
MEMORY = Path("/dev/shm")


def _lab(
    place: Path, measure: str = "drain", peers: tuple[str, ...] = (), stores: tuple[str, ...] = ("sqlite",)
) -> Lab:
    scale = structs.replace(QUICK, rounds=1, enqueue_jobs=FEW, bulk_jobs=1_000)
    return Lab(measure, scale, stores, 1, place, Results(), Watch(Console(quiet=True)), Servers(None), peers)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return _lab(tmp_path)


@pytest.fixture(params=PEERS, ids=lambda peer: peer.name)
def peer(request: pytest.FixtureRequest) -> Peer:
    chosen: Peer = request.param
    if (why := chosen.missing()) is not None:
        pytest.skip(why)
    return chosen


def _count(url: str, query: str) -> int:
    with closing(sqlite3.connect(path_of(url))) as connection:
        return int(connection.execute(query).fetchone()[0])


def test_a_drain_runs_all_jobs_of_a_copy_and_the_next_copy_is_full_again(lab: Lab, peer: Peer) -> None:
    for _ in range(2):
        with filled(lab, peer, FEW) as url:
            ran, *_ = followed(peer.drain(url, FEW, SLOTS), lambda: None)
            assert ran.jobs == FEW
            left = "SELECT count(*) FROM jobmill_jobs WHERE state <> 'succeeded'"
            assert _count(url, left if peer is OURS else "SELECT count(*) FROM task") == 0
        assert not Path(path_of(url)).exists()


def test_enqueues_leave_their_jobs_there(lab: Lab, peer: Peer) -> None:
    everything = f"SELECT count(*) FROM {'jobmill_jobs' if peer is OURS else 'task'}"
    with filled(lab, peer, 0) as url:
        followed(peer.enqueue(url, 2, FEW, 20), lambda: None)
        one_by_one = _count(url, everything)
        assert one_by_one - FEW in (0, 1)  # one for the connection
        if peer.bulk is not None:
            followed(peer.bulk(url, 10, 2 * FEW, 20), lambda: None)
            assert _count(url, everything) == one_by_one + 2 * FEW


def test_an_idle_worker_starts_each_job(lab: Lab, peer: Peer) -> None:
    with filled(lab, peer, 0) as url, peer.pickup_work(url, 3, 20, SLOTS) as worker:
        worker.wait_for(READY)
        pickups = peer.pickup_enqueue(url, 3, 1)
        pickups.started = worker.result()
        assert all(late > 0 for late in pickups.latencies_ms(pickups.called))


def test_nobody_starts_the_job_of_a_killed_worker_at_once(lab: Lab, peer: Peer, tmp_path: Path) -> None:
    with SQLITE.apart(lab, [peer]) as places:
        [url] = places
        assert again(peer, url, tmp_path / "started", 0.2, Event()) is None
        if peer is OURS:  # its lease has not ended
            assert _count(url, "SELECT count(*) FROM jobmill_jobs WHERE state = 'running'") == 1
        else:
            assert _count(url, "SELECT count(*) FROM task") == 0


def test_a_job_is_live_until_it_has_run(lab: Lab) -> None:
    with filled(lab, OURS, FEW) as url, looking(url) as is_left:
        assert is_left()
        with closing(sqlite3.connect(path_of(url))) as connection, connection:
            connection.execute("UPDATE jobmill_jobs SET state = 'running', lease_until_ms = 1")
        assert is_left()
        with closing(sqlite3.connect(path_of(url))) as connection, connection:
            connection.execute("UPDATE jobmill_jobs SET state = 'succeeded'")
        assert not is_left()


def test_a_history_is_made_once_of_jobs_that_have_run_and_others_run_beside_it(lab: Lab) -> None:
    finished = "SELECT count(*) FROM jobmill_jobs WHERE state = 'succeeded' AND name = 'noop' AND finished_ms > 0"
    for after in (FEW + 1, 2 * FEW + 1):
        with SQLITE.kept(lab, FEW) as url:
            assert _count(url, finished) == after
            OURS.fill(url, FEW)
            SQLITE.make_ready(url)
            followed(OURS.drain(url, FEW, SLOTS), lambda: None)


def test_several_processes_share_one_file_and_no_server_has_a_cpu(lab: Lab) -> None:
    shared = shares.drain(lab, SQLITE, FEW, processes=2, slots=SLOTS)
    assert shared.ran.jobs == FEW
    assert shared.server_s is None

    def turn(_: Path) -> None:
        shares.record(lab, "2 processes", "jobmill", shared)

    lab.alternate({"shared": turn}, rounds=1)
    assert {figure.unit for figure in lab.results.figures} == {"jobs/s", "client CPU us/job"}


def test_what_has_no_server_cannot_be_far_away(tmp_path: Path) -> None:
    assert [ground.store for ground in servers(_lab(tmp_path, stores=("sqlite", "redis")))] == ["redis"]


def test_huey_is_left_out_where_others_are_asked_for(tmp_path: Path) -> None:
    asked_for = {}
    for name, peers in (("huey", ("huey",)), ("rq", ("rq",))):
        place = tmp_path / name
        place.mkdir()
        lab = _lab(place, "enqueue", peers)
        enqueue.run(lab)
        asked_for[name] = {figure.who for figure in lab.results.figures}
    here = {"jobmill"} if HUEY.missing() else {"jobmill", "huey"}
    assert asked_for == {"huey": here, "rq": {"jobmill"}}


@pytest.fixture
def on_a_disk(tmp_path: Path) -> Lab:
    lab = _lab(tmp_path, "written")
    try:
        with counting(lab):
            pass
    except Unmetered as why:
        pytest.skip(str(why))
    return lab


def test_what_is_written_is_the_log_and_the_checkpoint(on_a_disk: Lab) -> None:
    assert OURS.bulk is not None
    sizes = []
    with counting(on_a_disk) as told, filled(on_a_disk, OURS, 0) as url:
        child = OURS.bulk(url, 1_000, 3_000, 20)

        def look() -> int:
            count = told(url, child.pid)
            sizes.append(Path(path_of(url)).stat().st_size)
            return count

        ran, before, after = followed(child, look)
    grown = sizes[1] - sizes[0]
    assert grown > 100 * ran.jobs
    assert 2 * grown <= after - before < 6 * grown, "each page once to the log and once to the file, some more often"


@pytest.mark.skipif(sys.platform != "linux" or not MEMORY.is_dir(), reason="needs a place in memory")
def test_in_memory_nothing_is_written_and_the_report_says_so() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        lab = _lab(Path(place), "written")
        lab.scale = structs.replace(lab.scale, quick=False)
        written.run(lab)
    assert lab.results.figures == []
    assert "--dir" in lab.results.missing["what SQLite writes"]


def test_the_verdict_names_who_writes_least_and_what_becomes_of_its_jobs() -> None:
    results = Results()
    for peer, value in ((OURS, 1_500.0), (HUEY, 15_000.0)):
        results.add(written.NAME, written.DRAIN, SQLITE.who(peer), written.UNIT, value)
    ours, against = written.verdicts(results)
    assert (ours.what, ours.measured) == ("SQLite: bytes written per job, drain, 50 slots", "1,500 B")
    assert against.what.endswith("against huey (lost after kill -9)")
    assert against.measured == "0.1 x"
