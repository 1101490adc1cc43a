"""What each change does to a job in each state: decided here once, applied by every store."""

from __future__ import annotations

from typing import get_args

import pytest

from jobmill.core.changes import (
    CHANGES_FROM,
    Cancel,
    Change,
    Patch,
    Remove,
    Reprioritize,
    Requeue,
    Reschedule,
    Seize,
    Subject,
    decide,
    states_for,
)
from jobmill.core.job import FINAL, KEEP_FAILED, LIVE, NULL, STATES, JobOptions, Keep, State
from jobmill.core.lifecycle import TRANSITIONS
from jobmill.core.values import Filter, after, at
from tests.values import NOW, job

SEIZE = Seize(token="t", worker="w", lease_ms=5_000)
CHANGES: list[Change] = [Cancel(), Requeue(), Reschedule(at(7)), Reprioritize(3), Remove(), SEIZE]


def subject(state: State, keep_failed: Keep | None = None, *, ours: bool = True) -> Subject:
    return Subject(
        id="1", name="send", queue="mail", state=state, errors=2, keep_failed=keep_failed, has_our_retention=ours
    )


def patch(change: Change, one: Subject, index: int = 0) -> Patch:
    decided = decide(change, one, NOW, index)
    assert isinstance(decided, Patch)
    return decided


def test_every_change_is_tested() -> None:
    assert {type(change) for change in CHANGES} == set(get_args(Change)) == set(CHANGES_FROM)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("state", STATES)
def test_a_change_is_refused_from_other_states_and_follows_the_table_of_transitions(
    change: Change, state: State
) -> None:
    decided = decide(change, subject(state), NOW)
    if state not in CHANGES_FROM[type(change)]:
        assert decided == f"the job is {state}"
        return
    assert isinstance(decided, Patch)
    if isinstance(change, Remove):
        assert decided.removes
    else:
        verb = type(change).__name__.lower()
        assert decided.fields.get("state", state) == TRANSITIONS[state, verb]


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize(
    ("given", "keep", "removes"),
    [
        (None, KEEP_FAILED, False),
        (Keep(last=5), Keep(last=5), False),
        (Keep(last=0), Keep(last=0), True),
        (Keep(age_ms=0), Keep(age_ms=0), True),
    ],
)
def test_a_cancelled_job_ends_its_lease_and_stays_as_long_as_a_failed_one(
    state: State, given: Keep | None, keep: Keep, removes: bool
) -> None:
    decided = patch(Cancel(), subject(state, given))
    assert decided.fields == {"state": "cancelled", "finished_ms": NOW, "updated_ms": NOW}
    assert (decided.ends_lease, decided.keep, decided.removes) == (True, keep, removes)
    assert [event.type for event in decided.events] == ["cancelled", "removed"][: 1 + removes]


def test_a_cancelled_job_of_another_system_stays_as_that_decides() -> None:
    decided = patch(Cancel(), subject("waiting", Keep(last=0), ours=False))
    assert (decided.keep, decided.removes, len(decided.events)) == (None, False, 1)


@pytest.mark.parametrize("state", FINAL)
def test_a_requeued_job_waits_with_fresh_budgets(state: State) -> None:
    decided = patch(Requeue(after(100), step_ms=2.5), subject(state), index=3)
    assert decided.fields == {
        "state": "waiting",
        "due_ms": NOW + 108,
        "updated_ms": NOW,
        "finished_ms": None,
        "errors": 0,
        "crashes": 0,
        "error": None,
        "result_json": NULL,
        "progress": None,
        "deferred_error": None,
    }
    assert decided.becomes_live
    (event,) = decided.events
    assert (event.type, event.attempt) == ("enqueued", 1)


@pytest.mark.parametrize("state", LIVE)
def test_a_seized_job_runs_under_the_lease_of_the_change(state: State) -> None:
    decided = patch(SEIZE, subject(state))
    assert decided.fields == {"state": "running", "worker": "w", "started_ms": NOW, "updated_ms": NOW}
    assert (decided.seize, decided.ends_lease) == (SEIZE, False)
    assert [(event.type, event.data) for event in decided.events] == [("claimed", {"worker": "w"})]


def test_a_waiting_job_gets_another_due_time_or_priority() -> None:
    assert patch(Reschedule(at(7)), subject("waiting")).fields == {"due_ms": 7, "updated_ms": NOW}
    assert patch(Reprioritize(3), subject("waiting")).fields == {"priority": 3, "updated_ms": NOW}


def test_the_fields_of_every_patch_are_fields_of_a_job() -> None:
    for change in CHANGES:
        for state in CHANGES_FROM[type(change)]:
            assert patch(change, subject(state)).fields.keys() <= set(job().__struct_fields__)


def test_a_subject_is_made_of_a_job() -> None:
    one = job(state="failed", errors=4, options=JobOptions(keep_failed=Keep(last=1)))
    assert Subject.of(one) == Subject(
        id=one.id, name=one.name, queue=one.queue, state="failed", errors=4, keep_failed=Keep(last=1)
    )


def test_a_filter_only_selects_jobs_that_may_be_changed() -> None:
    assert states_for(Cancel(), Filter()) == ("waiting", "running")
    assert states_for(Cancel(), Filter(states=("failed", "running"))) == ("running",)
    assert states_for(Requeue(), Filter(states=("running",))) == ()
