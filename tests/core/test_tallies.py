"""Tallies: histograms, sums, steps and error groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmill.core.tallies import (
    BUCKETS,
    COUNTS,
    MAX_ERROR_GROUPS,
    MINUTE_MS,
    ErrorGroup,
    Tally,
    added,
    added_groups,
    bucket,
    in_all_steps,
    quantile_ms,
    series,
    stored_step,
)
from jobmill.stores.common.flat_tallies import flat_counts, flat_texts, from_flat

HOUR_MS = 60 * MINUTE_MS


def _group(fingerprint: str, count: int, last_ms: int = 0) -> ErrorGroup:
    about = {"error_type": "E", "location": "a.py:1 in f", "last_job_id": f"job {last_ms}"}
    return ErrorGroup(fingerprint=fingerprint, count=count, last_ms=last_ms, **about)


@pytest.mark.parametrize(
    ("ms", "index"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (1024, 10), (1 << 24, 24), (1 << 40, 24)]
)
def test_a_duration_is_in_the_bucket_of_its_power_of_two(ms: int, index: int) -> None:
    assert bucket(ms) == index


def test_the_longest_bucket_reaches_to_nine_hours() -> None:
    assert bucket(9 * HOUR_MS) == BUCKETS - 1
    assert bucket(4 * HOUR_MS) == BUCKETS - 2


@given(st.lists(st.integers(0, 10 * HOUR_MS), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_at_most_twice_too_large(values: list[int], share: float) -> None:
    buckets = [0] * BUCKETS
    for value in values:
        buckets[bucket(value)] += 1
    found = quantile_ms(buckets, share)
    exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    assert found is not None
    assert min(exact, 1 << BUCKETS) <= found <= max(2, 2 * exact)


def test_without_durations_there_is_no_quantile() -> None:
    assert quantile_ms([0] * BUCKETS, 0.5) is None


def test_groups_are_added_by_fingerprint_and_the_most_frequent_stay() -> None:
    groups = [_group("a", 2, 5), _group("b", 9, 1), _group("a", 1, 3)]
    assert added_groups(groups) == (_group("b", 9, 1), _group("a", 3, 5))
    many = [_group(f"{number:03}", number) for number in range(1, 100)]
    assert [group.count for group in added_groups(many)] == list(range(99, 99 - MAX_ERROR_GROUPS, -1))


def test_a_minute_counts_in_its_ten_minutes_and_its_hour() -> None:
    tally = Tally(start_ms=25 * MINUTE_MS, queue="q", name="n", claimed=1)
    steps = [(one.step_ms, one.start_ms) for one in in_all_steps([tally])]
    assert steps == [(MINUTE_MS, 25 * MINUTE_MS), (10 * MINUTE_MS, 20 * MINUTE_MS), (HOUR_MS, 0)]


@pytest.mark.parametrize(
    ("wanted", "stored"), [(1, 1), (2, 1), (5, 1), (10, 10), (30, 10), (60, 60), (90, 10), (120, 60), (1440, 60)]
)
def test_a_series_is_made_of_the_longest_step_that_divides_its_own(wanted: int, stored: int) -> None:
    assert stored_step(wanted * MINUTE_MS) == stored * MINUTE_MS


_tallies = st.builds(
    Tally,
    start_ms=st.integers(0, 10_000).map(lambda n: n * MINUTE_MS),
    queue=st.sampled_from("ab"),
    name=st.sampled_from("xy"),
    **{field: st.integers(0, 1000) for field in COUNTS},
    run_buckets=st.tuples(*[st.integers(0, 5)] * BUCKETS),
    wait_buckets=st.tuples(*[st.integers(0, 5)] * BUCKETS),
    error_groups=st.lists(st.builds(_group, st.sampled_from(["aa", "bb"]), st.integers(1, 9), st.integers(0, 9))).map(
        added_groups
    ),
)


@given(st.lists(_tallies))
def test_a_series_loses_nothing(tallies: list[Tally]) -> None:
    hours = series(tallies, HOUR_MS)
    for field in COUNTS:
        assert sum(getattr(one, field) for one in hours) == sum(getattr(one, field) for one in tallies)
    assert sum(sum(one.run_buckets) for one in hours) == sum(sum(one.run_buckets) for one in tallies)
    assert all(one.start_ms % HOUR_MS == 0 for one in hours)
    keys = [(one.start_ms, one.queue, one.name) for one in hours]
    assert keys == sorted(set(keys))


@given(_tallies)
def test_a_flat_tally_is_the_same_again(tally: Tally) -> None:
    fields = flat_counts(tally) | flat_texts(tally)
    assert from_flat(tally.start_ms, tally.step_ms, tally.queue, tally.name, fields) == tally


@given(_tallies, _tallies)
def test_flat_counts_can_be_added_in_place(one: Tally, other: Tally) -> None:
    total = added(one, other)
    sums = flat_counts(one)
    for field, count in flat_counts(other).items():
        sums[field] = sums.get(field, 0) + count
    assert sums == flat_counts(total)
