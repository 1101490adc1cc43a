"""Contenders of the benchmark: each one really runs what it is measured with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.child import BEGUN, READY, SETTLED, Child
from bench.clocks import Pickups, Ran
from bench.contenders import CONTENDERS, Contender
from bench.grounds import Grounds
from bench.measures import MEASURES, chosen

EVERYBODY = [(store, one) for store, all in CONTENDERS.items() if store != "crontab" for one in all]
SHARED = [(store, one) for store, one in EVERYBODY if store != "memory"]
#: Those that are measured with handlers that take time: Jobmill, and its rivals in Python.
RIVALS = [(store, one) for store, one in SHARED if (one.is_rival and not one.is_on_node) or one is CONTENDERS[store][0]]
JOBS = 30


def _ids(value: object) -> str | None:
    return value if isinstance(value, str) else value.name if isinstance(value, Contender) else None


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with Grounds(None) as made:
        yield made


def _there(contender: Contender) -> None:
    if (why := contender.missing()) is not None:
        pytest.skip(why)


def _followed(child: Child[Ran]) -> Ran:
    with child:
        for word in (BEGUN, SETTLED):
            child.wait_for(word)
            child.go_on()
        return child.result()


@pytest.mark.parametrize("store", CONTENDERS)
def test_names_are_unique_and_a_guarantee_begins_with_what_becomes_of_the_job(store: str) -> None:
    names = [one.name for one in CONTENDERS[store]]
    assert len(set(names)) == len(names)
    for one in CONTENDERS[store]:
        assert one.about.guarantee.replace(",", ":").partition(":")[0] in ("kept", "repeated", "lost")


def test_which_measures_a_run_has_unless_others_are_named() -> None:
    assert {name.partition(" ")[2] for name, _, _ in chosen((), list(CONTENDERS), True)} == {
        "drain",
        "enqueue",
        "pickup",
    }
    full = {name.partition(" ")[2] for name, _, _ in chosen((), list(CONTENDERS), False)}
    assert set(MEASURES) - full == {"flows", "lanes", "operations"}
    assert [name for name, _, _ in chosen(("flows",), ["redis"], False)] == ["redis flows"]
    assert [name for name, _, _ in chosen(("depth",), ["redis"], True)] == ["redis depth"]


@pytest.mark.slow
@pytest.mark.parametrize(("store", "contender"), EVERYBODY, ids=_ids)
def test_all_jobs_that_wait_are_drained(grounds: Grounds, store: str, contender: Contender) -> None:
    _there(contender)
    with grounds[store].filled(contender, JOBS) as url:
        ran = _followed(contender.begin("drain", Ran, url=url, jobs=JOBS, slots=contender.takes(5)))
    assert ran.jobs == JOBS
    assert ran.cpu_seconds > 0
    assert 0 < ran.seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize(("store", "contender"), RIVALS, ids=_ids)
def test_handlers_take_their_time(grounds: Grounds, store: str, contender: Contender) -> None:
    """The benchmark measures these with such handlers too. The clock starts at the end of the first one."""
    _there(contender)
    with grounds[store].filled(contender, 8) as url:
        ran = _followed(contender.begin("drain", Ran, url=url, jobs=8, slots=contender.takes(2), ms=50))
    assert ran.seconds > 0.05


@pytest.mark.slow
def test_several_processes_share_the_jobs_of_a_queue(grounds: Grounds) -> None:
    ours = CONTENDERS["sqlite"][0]
    with grounds["sqlite"].filled(ours, 2_000) as url, ExitStack() as opened:
        both = [opened.enter_context(ours.begin("drain", Ran, url=url, jobs=0, slots=5)) for _ in range(2)]
        for word in (BEGUN, SETTLED):
            for child in both:
                child.wait_for(word)
            for child in both:
                child.go_on()
        ran = [child.result().jobs for child in both]
    assert sum(ran) == 2_000
    assert min(ran) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("store", "contender"), SHARED, ids=_ids)
def test_jobs_are_enqueued_one_by_one_and_in_bulk(grounds: Grounds, store: str, contender: Contender) -> None:
    _there(contender)
    with grounds[store].filled(contender, 0) as url:
        ran = _followed(contender.begin("enqueue", Ran, url=url, callers=3, jobs=JOBS, seconds=30))
        assert JOBS <= ran.jobs <= JOBS + 2
        if contender.has_bulk:
            ran = _followed(contender.begin("bulk", Ran, url=url, size=10, jobs=JOBS, seconds=30))
            assert ran.jobs == JOBS


@pytest.mark.slow
@pytest.mark.parametrize(("store", "contender"), SHARED, ids=_ids)
def test_an_idle_worker_starts_each_job_that_comes(grounds: Grounds, store: str, contender: Contender) -> None:
    _there(contender)
    with (
        grounds[store].filled(contender, 0) as url,
        contender.begin("pickup", list[int], url=url, jobs=3, seconds=30, slots=contender.takes(5)) as worker,
    ):
        worker.wait_for(READY)
        calls = contender.run("pickupEnqueue", Pickups, url=url, gaps=[0.01, 0.02, 0.03])
        started = worker.result()
    assert all(called <= start for called, start in zip(calls.called, started, strict=True)), started


@pytest.mark.slow
@pytest.mark.parametrize(("store", "contender"), [SHARED[0]], ids=_ids)
def test_a_held_job_writes_to_its_file_and_stays(
    grounds: Grounds, store: str, contender: Contender, tmp_path: Path
) -> None:
    file = tmp_path / "started"
    with (
        grounds[store].filled(contender, 0) as url,
        contender.begin("work", type(None), url=url, slots=2, path=str(file)) as worker,
    ):
        worker.wait_for(READY)
        contender.run("hold", type(None), url=url)
        while not file.exists():
            pass
        assert file.read_text("utf-8") == "started\n"
