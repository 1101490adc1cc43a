"""What becomes of recurring jobs: runs, slots, ends, and recurrences that nobody can read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from jobmill.core.lifecycle import Outcome, Released, Snoozed, Succeeded, begin, settle
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Claimed, after, at
from tests.core.deciding import HOUR, HOURLY, OUTCOMES, RULES, error, recurring
from tests.values import NOW


def test_a_run_that_succeeds_is_counted_and_waits_for_the_next_slot() -> None:
    one = recurring(errors=1, crashes=1, runs=4, failed_runs=2, last_error="once", error="no luck")
    decided = settle(one, Succeeded(b"5"), RULES, NOW + 10)
    assert (decided.outcome, decided.state, decided.error) == ("succeeded", "waiting", None)
    assert (decided.errors, decided.crashes) == (0, 0)
    assert decided.due == at(NOW + HOUR)
    assert decided.rearm is not None
    assert decided.runs is not None
    assert (decided.rearm.occurrence_ms, decided.runs.revision) == (NOW + HOUR, 7)
    assert decided.runs is not None
    assert (decided.runs.runs, decided.runs.failed_runs, decided.runs.last_error) == (5, 2, "once")
    assert (decided.result_json, decided.keep) == (b"5", None)


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (recurring(errors=2, runs=4, failed_runs=2), error("last straw")),
        (recurring(runs=4, failed_runs=2), error("last straw", final=True)),
        (recurring(runs=4, failed_runs=2), error("last straw", delay_ms=HOUR)),
    ],
    ids=["no attempts left", "final", "a retry after the next slot"],
)
def test_a_run_that_fails_goes_on_with_the_next_slot(one: Claimed, outcome: Outcome) -> None:
    decided = settle(one, outcome, RULES, NOW)
    assert (decided.outcome, decided.state, decided.error) == ("errored", "waiting", "last straw")
    assert (decided.errors, decided.crashes, decided.keep) == (0, 0, None)
    assert decided.due == at(NOW + HOUR)
    assert decided.runs is not None
    assert (decided.runs.runs, decided.runs.failed_runs, decided.runs.last_error) == (5, 3, "last straw")
    assert [one.traceback for one in decided.attempts or ()] == ["Traceback of last straw"]


@pytest.mark.parametrize(
    ("delay_ms", "retried"), [(HOUR - 1, True), (HOUR, False), (HOUR + 1, False)], ids=["before", "at", "after"]
)
def test_a_retry_gives_way_to_the_next_slot(delay_ms: int, retried: bool) -> None:
    decided = settle(recurring(), error(delay_ms=delay_ms), RULES, NOW)
    if retried:
        assert (decided.due, decided.errors, decided.runs, decided.rearm) == (after(delay_ms), 1, None, None)
    else:
        assert (decided.due, decided.errors) == (at(NOW + HOUR), 0)
        assert decided.rearm is not None


def test_a_retry_has_another_due_time_but_the_same_slot() -> None:
    decided = settle(recurring(due_ms=NOW + 20_000, errors=1), Succeeded(), RULES, NOW + 20_005)
    assert decided.due == at(NOW + HOUR), "the grid goes through the slot, not through the retry"


def test_without_a_slot_of_its_own_the_due_time_is_the_slot() -> None:
    assert settle(recurring(occurrence_ms=None, due_ms=NOW), Succeeded(), RULES, NOW + 5).due == at(NOW + HOUR)


def test_slots_that_were_missed_collapse_into_one_run() -> None:
    decided = settle(recurring(), Succeeded(), RULES, NOW + 5 * HOUR + 1)
    assert decided.due == at(NOW + 6 * HOUR)


LAST = structs.replace(HOURLY, until_ms=NOW + HOUR - 1)


def test_the_last_run_is_final_when_it_succeeds() -> None:
    decided = settle(recurring(LAST, errors=1, crashes=2, runs=4), Succeeded(b"5"), RULES, NOW)
    assert (decided.state, decided.keep, decided.result_json) == ("succeeded", RULES.keep_succeeded, b"5")
    assert (decided.due, decided.rearm, decided.crashes) == (None, None, 2)
    assert decided.runs is not None
    assert (decided.runs.runs, decided.runs.failed_runs) == (5, 0)


def test_the_last_run_is_retried_and_final_when_it_fails() -> None:
    first = settle(recurring(LAST), error(delay_ms=2 * HOUR), RULES, NOW)
    assert (first.state, first.due) == ("waiting", after(2 * HOUR)), "there is no slot to give way to"
    last = settle(recurring(LAST, errors=2), error("over"), RULES, NOW)
    assert (last.state, last.errors, last.keep, last.error) == ("failed", 3, RULES.keep_failed, "over")
    assert last.runs is not None
    assert (last.runs.failed_runs, last.runs.last_error) == (1, "over")


@pytest.mark.parametrize("outcome", [Snoozed(9 * HOUR), Released()], ids=repr)
def test_a_run_that_goes_back_is_not_counted(outcome: Outcome) -> None:
    decided = settle(recurring(errors=1, crashes=1, runs=4), outcome, RULES, NOW)
    assert (decided.state, decided.errors, decided.crashes) == ("waiting", 1, 1)
    assert (decided.runs, decided.rearm) == (None, None)


@pytest.mark.parametrize("fields", [{"crashes": 3}, {"deferred_error": "why"}], ids=["crashed", "deferred_error"])
def test_a_run_that_never_began_goes_on_with_the_next_slot(fields: dict[str, Any]) -> None:
    decided = begin(recurring(**fields), RULES, NOW)
    assert decided is not None
    assert (decided.state, decided.due, decided.errors, decided.crashes) == ("waiting", at(NOW + HOUR), 0, 0)
    assert decided.runs is not None
    assert (decided.runs.runs, decided.runs.failed_runs) == (1, 1)


GARBAGE = [
    Recurrence(key="k", cron="every now and then"),
    Recurrence(key="k", cron="0 0 * * *", timezone="Nowhere/Land"),
    Recurrence(key="k", cron="* * * * *", every_ms=5),
    Recurrence(key="k"),
    Recurrence(key="k", every_ms=0),
    Recurrence(key="k", every_ms=-5),
]


@pytest.mark.parametrize("rule", GARBAGE, ids=repr)
@pytest.mark.parametrize(
    "fields", [{}, {"crashes": 99}, {"deferred_error": "why"}], ids=["", "crashed", "deferred_error"]
)
def test_a_stored_recurrence_that_is_garbage_is_given_back_later_each_time_with_the_reason(
    rule: Recurrence, fields: dict[str, Any]
) -> None:
    for claims, delay_ms in ((1, 2_000), (2, 4_000), (50, 60_000)):
        decided = begin(recurring(rule, claims=claims, errors=1, **fields), RULES, NOW)
        assert decided is not None
        assert (decided.outcome, decided.state, decided.errors, decided.rearm) == ("released", "waiting", 1, None)
        assert decided.due == after(delay_ms)
        assert (decided.error or "").startswith("the stored recurrence cannot be read: ")


@pytest.mark.parametrize("rule", GARBAGE, ids=repr)
@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_a_garbage_recurrence_does_not_keep_a_run_from_being_settled(rule: Recurrence, outcome: Outcome) -> None:
    decided = settle(recurring(rule), outcome, RULES, NOW)
    assert decided.rearm is None


@pytest.mark.parametrize("rule", GARBAGE, ids=repr)
def test_a_garbage_recurrence_of_an_unknown_name_is_not_ours_to_judge(rule: Recurrence) -> None:
    decided = begin(recurring(rule), None, NOW)
    assert decided is not None
    assert decided.outcome == "released"
