"""What each change does to a job in each state: decided here once, applied by every store."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec import structs

from jobmill.core.changes import (
    CHANGES_FROM,
    Cancel,
    Change,
    Hold,
    Patch,
    Pin,
    Release,
    ReleasePin,
    Remove,
    Reprioritize,
    Requeue,
    Reschedule,
    Seize,
    Subject,
    decide,
    states_for,
)
from jobmill.core.due import NEVER_MS, Held
from jobmill.core.job import FINAL, KEEP_FAILED, LIVE, NULL, STATES, JobOptions, Keep, State
from jobmill.core.lifecycle import TRANSITIONS
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, after, at
from tests.values import NOW, job

SEIZE = Seize(token="t", worker="w", lease_ms=5_000)
RULE = Recurrence(key="k", every_ms=5)
HELD = Held(by=("person",), due=at(7), who="ada", note="why")
CHANGES: list[Change] = [
    *(Cancel(), Requeue(), Reschedule(at(7)), Reprioritize(3), Remove(), SEIZE),
    *(Hold(), Release(), Pin(RULE), ReleasePin()),
]


def subject(state: State, keep_failed: Keep | None = None, *, ours: bool = True, **about: Any) -> Subject:
    given: dict[str, Any] = {"id": "1", "name": "send", "queue": "mail", "due_ms": NOW - 9, "errors": 2} | about
    return Subject(state=state, keep_failed=keep_failed, has_our_retention=ours, **given)


def changeable(change: Change, state: State) -> Subject:
    """A job in this state that the change is possible for."""
    about: dict[type[Change], dict[str, Any]] = {
        Release: {"held": HELD},
        Pin: {"recurrence": RULE},
        ReleasePin: {"recurrence": RULE.edited(RULE)},
    }
    return subject(state, **about.get(type(change), {}))


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
    decided = decide(change, changeable(change, state), NOW)
    if state not in CHANGES_FROM[type(change)]:
        assert decided == f"the job is {state}"
        return
    assert isinstance(decided, Patch)
    if isinstance(change, Remove):
        assert decided.removes
    else:
        verb = "release pin" if isinstance(change, ReleasePin) else type(change).__name__.lower()
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
        "waits_for": None,
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
            assert patch(change, changeable(change, state)).fields.keys() <= set(job().__struct_fields__)


def test_a_subject_is_made_of_a_job() -> None:
    one = job(state="failed", errors=4, options=JobOptions(keep_failed=Keep(last=1)))
    assert Subject.of(one) == Subject(
        id=one.id, name=one.name, queue=one.queue, state="failed", due_ms=one.due_ms, errors=4, keep_failed=Keep(last=1)
    )


def test_a_filter_only_selects_jobs_that_may_be_changed() -> None:
    assert states_for(Cancel(), Filter()) == ("waiting", "running")
    assert states_for(Cancel(), Filter(states=("failed", "running"))) == ("running",)
    assert states_for(Requeue(), Filter(states=("running",))) == ()


# ---------------------------------------------------------------------------------------------------- held and pinned


def test_a_held_job_keeps_its_due_time_for_its_release() -> None:
    fields = patch(Hold(who="ada", note="why"), subject("waiting", due_ms=7)).fields
    assert fields == {"held": HELD, "due_ms": NEVER_MS, "updated_ms": NOW}
    assert patch(Release(), subject("waiting", held=HELD, due_ms=NEVER_MS)).fields == {
        "held": None,
        "due_ms": 7,
        "updated_ms": NOW,
    }


def test_a_delay_counts_from_the_release() -> None:
    held = structs.replace(HELD, due=after(500))
    assert patch(Release(), subject("waiting", held=held)).fields["due_ms"] == NOW + 500


def test_a_job_with_several_holders_waits_for_all() -> None:
    rule = patch(Hold(by="rule"), subject("waiting", held=HELD)).fields["held"]
    assert rule == structs.replace(HELD, by=("person", "rule"))
    rest = patch(Release(), subject("waiting", held=rule)).fields
    assert rest == {"held": Held(by=("rule",), due=at(7)), "updated_ms": NOW}


def test_only_a_holder_can_release() -> None:
    assert decide(Release(), subject("waiting"), NOW) == "the job is not held"
    refused = decide(Release("rule"), subject("waiting", held=HELD), NOW)
    assert refused == "the job is held by person, not by rule"


def test_a_held_job_is_rescheduled_for_its_release() -> None:
    fields = patch(Reschedule(after(5)), subject("waiting", held=HELD, due_ms=NEVER_MS)).fields
    assert fields == {"held": structs.replace(HELD, due=after(5)), "updated_ms": NOW}


@pytest.mark.parametrize("change", [Cancel(), SEIZE], ids=repr)
def test_a_job_that_leaves_waiting_is_held_no_longer(change: Change) -> None:
    fields = patch(change, subject("waiting", held=HELD, due_ms=NEVER_MS)).fields
    assert (fields["held"], fields["due_ms"]) == (None, 7)


def test_a_pin_keeps_what_code_stated() -> None:
    rule = Recurrence(key="k", cron="0 5 * * *", revision=3, declared=True)
    hourly = Recurrence(key="other", every_ms=3_600_000)
    fields = patch(Pin(hourly), subject("running", recurrence=rule)).fields
    pinned = fields["recurrence"]
    stated = structs.replace(rule, revision=0, declared=False)
    assert pinned == Recurrence(key="k", every_ms=3_600_000, revision=4, declared=True, pinned=True, stated=stated)
    assert fields["due_ms"] == fields["occurrence_ms"] == NOW
    again = patch(Pin(RULE), subject("waiting", recurrence=pinned)).fields["recurrence"]
    assert (again.every_ms, again.stated) == (5, stated)
    released = patch(ReleasePin(), subject("waiting", recurrence=again)).fields["recurrence"]
    assert released == structs.replace(rule, revision=6)


def test_what_cannot_be_pinned() -> None:
    assert decide(Pin(RULE), subject("waiting"), NOW) == "the job is not recurring"
    not_pinned = decide(ReleasePin(), subject("waiting", recurrence=RULE), NOW)
    assert not_pinned == "the recurrence of the job is not pinned"
    bad = decide(Pin(Recurrence(key="k", cron="never")), subject("waiting", recurrence=RULE), NOW)
    assert str(bad).startswith("the rule cannot be read: ")
    over = decide(Pin(Recurrence(key="k", every_ms=5, until_ms=1)), subject("waiting", recurrence=RULE), NOW)
    assert over == "the rule has no occurrence any more"


def test_the_rule_of_a_held_job_decides_its_due_time_after_the_release() -> None:
    fields = patch(Pin(RULE), subject("waiting", recurrence=RULE, held=HELD)).fields
    assert fields["held"] == structs.replace(HELD, due=at(NOW))
    assert "due_ms" not in fields
