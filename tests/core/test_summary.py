"""Sums over jobs: percentiles against their definition, and filters field by field."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core.job import STATES
from jobmill.core.stats import by_queue_and_name, matches, percentile, stats
from jobmill.core.values import EVERYTHING, Count, Filter, Stats
from tests.values import NOW, job


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7.0], 0.5, 7.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([1.0, 2.0], 0.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentiles(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


@given(st.integers(1, 5_000), st.sampled_from(["0.5", "0.95", "0.99"]))
def test_a_percentile_is_the_smallest_value_with_that_share_at_or_below_it(n: int, share: str) -> None:
    rank = math.ceil(Fraction(share) * n)
    assert percentile(range(1, n + 1), float(share)) == rank


def test_stats_of_durations_in_any_order() -> None:
    line = stats("mail", "send", {"waiting": 2, "succeeded": 3}, 900, [30.0, 10.0, 20.0])
    assert line == Stats(
        queue="mail",
        name="send",
        waiting=2,
        succeeded=3,
        oldest_waiting_ms=900,
        average_ms=20.0,
        p50_ms=20.0,
        p95_ms=30.0,
        p99_ms=30.0,
    )


def test_stats_of_nothing() -> None:
    line = stats("mail", "send", {}, None, [])
    assert line == Stats(queue="mail", name="send")
    assert (line.average_ms, line.p50_ms) == (None, None)


def test_counts_as_a_table() -> None:
    counts = [Count("a", "x", "waiting", 1), Count("a", "x", "failed", 2), Count("b", "x", "waiting", 3)]
    assert by_queue_and_name(counts) == {("a", "x"): {"waiting": 1, "failed": 2}, ("b", "x"): {"waiting": 3}}


ONE = job(due_ms=NOW + 5, tenant="acme", unique_key="k", finished_ms=NOW + 9, state="failed")

MATCHES: list[tuple[Filter, bool]] = [
    (EVERYTHING, True),
    (Filter(queue="mail"), True),
    (Filter(queue="Mail"), False),
    (Filter(name="send"), True),
    (Filter(name="sen"), False),
    (Filter(states=("failed",)), True),
    (Filter(states=("waiting", "failed")), True),
    (Filter(states=("waiting",)), False),
    (Filter(states=()), False),
    (Filter(tenant="acme"), True),
    (Filter(tenant="other"), False),
    (Filter(unique_key="k"), True),
    (Filter(unique_key="l"), False),
    (Filter(created_after_ms=NOW), True),
    (Filter(created_after_ms=NOW + 1), False),
    (Filter(created_before_ms=NOW + 1), True),
    (Filter(created_before_ms=NOW), False),
    (Filter(due_after_ms=NOW + 5, due_before_ms=NOW + 6), True),
    (Filter(due_after_ms=NOW + 6), False),
    (Filter(due_before_ms=NOW + 5), False),
    (Filter(finished_after_ms=NOW + 9, finished_before_ms=NOW + 10), True),
    (Filter(finished_after_ms=NOW + 10), False),
    (Filter(finished_before_ms=NOW + 9), False),
    (Filter(queue="mail", name="other"), False),
    (Filter(queue="mail", name="send", states=("failed",), tenant="acme", unique_key="k"), True),
]


@pytest.mark.parametrize(("wanted", "expected"), MATCHES)
def test_filters(wanted: Filter, expected: bool) -> None:
    assert matches(ONE, wanted) is expected


def test_a_job_that_has_not_finished_is_in_no_period_of_finishing() -> None:
    assert not matches(job(), Filter(finished_after_ms=0))
    assert not matches(job(), Filter(finished_before_ms=NOW * 2))


@given(st.sampled_from(STATES), st.sets(st.sampled_from(STATES)))
def test_a_filter_by_states_means_one_of_them(state: str, wanted: set[Any]) -> None:
    assert matches(job(state=state), Filter(states=tuple(wanted))) == (state in wanted)
