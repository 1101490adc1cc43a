"""How many workers a queue needs."""

from __future__ import annotations

from typing import Any

import pytest

from jobmill.core.scaling import Scale, scale
from jobmill.core.tallies import BUCKETS, Tally, bucket
from jobmill.core.values import Depth, Pause, QueueSettings
from jobmill.testing.contract.announce import card

NOW = 1_000_000


def _tally(run_ms: int, count: int = 10) -> Tally:
    buckets = [0] * BUCKETS
    buckets[bucket(run_ms)] = count
    return Tally(start_ms=0, queue="mail", name="send", run_buckets=tuple(buckets))


def _scale(depth: dict[str, Any], settings: QueueSettings | None = None, **about: Any) -> Scale:
    given = {"workers": (), "tallies": (), "has_work_soon": depth.get("due", 0) > 0} | about
    return scale(Depth(queue="mail", **depth), settings or QueueSettings(), now_ms=NOW, **given)


def test_an_empty_queue_needs_no_worker() -> None:
    answer = _scale({})
    assert (answer.desired, answer.active, answer.drain_s) == (0, False, None)


def test_a_queue_with_work_soon_keeps_one_worker() -> None:
    answer = _scale({"later": 1}, has_work_soon=True)
    assert (answer.desired, answer.active) == (1, True)


@pytest.mark.parametrize(
    ("due", "running", "desired"), [(1, 0, 1), (600, 0, 1), (601, 0, 2), (6_000, 0, 10), (0, 41, 3), (600, 20, 2)]
)
def test_due_jobs_are_run_within_the_target_and_running_jobs_keep_their_workers(
    due: int, running: int, desired: int
) -> None:
    # Without tallies a run takes a second, and a worker runs 20 jobs at once: 600 jobs within 30 s.
    assert _scale({"due": due, "running": running}).desired == desired


def test_slow_jobs_need_more_workers_and_a_long_target_fewer() -> None:
    assert _scale({"due": 600}, tallies=[_tally(8_000)]).desired == 9
    assert _scale({"due": 600}, tallies=[_tally(8_000), _tally(3, 100)]).desired == 1
    assert _scale({"due": 600}, tallies=[_tally(8_000)], target_ms=480_000).desired == 1


def test_the_concurrency_of_the_workers_counts_unless_one_is_given() -> None:
    workers = [card("a", concurrency=5), card("b", concurrency=5), card("c", concurrency=100)]
    answer = _scale({"due": 600}, workers=workers)
    assert (answer.desired, answer.concurrency, answer.workers) == (4, 5, 3)
    assert answer.drain_s == pytest.approx(5.5, abs=0.1)
    assert _scale({"due": 600}, workers=workers, concurrency=10).desired == 2


def test_held_jobs_need_no_worker() -> None:
    answer = _scale({"held": 5_000})
    assert (answer.desired, answer.held) == (0, 5_000)


def test_a_paused_queue_needs_only_what_runs() -> None:
    paused = QueueSettings(paused=True)
    assert _scale({"due": 6_000}, paused).desired == 0
    assert _scale({"due": 6_000, "running": 5}, paused).desired == 1
    over = QueueSettings(paused=True, pause=Pause(until_ms=NOW))
    assert _scale({"due": 6_000}, over).desired == 10


def test_a_running_limit_bounds_the_workers() -> None:
    limited = QueueSettings(running_limit=40)
    assert _scale({"due": 10_000}, limited).desired == 2
    assert _scale({"due": 10_000, "running": 61}, limited).desired == 4


def test_the_age_of_the_oldest_job() -> None:
    assert _scale({"due": 1, "oldest_due_ms": NOW - 12_500}).oldest_due_s == 12.5
    assert _scale({}).oldest_due_s == 0
