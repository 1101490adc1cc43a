"""The state machine: its table against its deciders, every outcome under every budget, and what always holds."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from jobmill.core import lifecycle
from jobmill.core.changes import (
    CHANGES_FROM,
    Broken,
    Cancel,
    Change,
    Claimed,
    Lease,
    Remove,
    Reprioritise,
    Requeue,
    Reschedule,
    Settlement,
    after,
    at,
)
from jobmill.core.job import FINAL, LIVE, NO_OPTIONS, STATES, TRACEBACKS_KEPT, Job, JobOptions, Keep, State
from jobmill.core.lifecycle import (
    DEFAULT_POLICY,
    TRANSITIONS,
    UNKNOWN_NAME_DELAY_CAP_MS,
    Errored,
    Outcome,
    Policy,
    Released,
    Snoozed,
    Succeeded,
    begin,
    fails_instead,
    policy,
    settle,
)
from jobmill.core.recurrence import Recurrence, next_slot
from jobmill.core.retry import exponential, fixed

NOW = 1_700_000_000_000
HOUR = 3_600_000
HOURLY = Recurrence(key="hourly", every_ms=HOUR, revision=7)
RULES = Policy(
    max_attempts=3, max_crashes=3, backoff=fixed("5s"), keep_succeeded=Keep(last=1), keep_failed=Keep(last=2)
)


def claimed(**fields: Any) -> Claimed:
    """A running job under a lease."""
    base: dict[str, Any] = {
        "id": "job-1",
        "name": "send",
        "queue": "mail",
        "payload_json": Raw(b"{}"),
        "state": "running",
        "priority": 0,
        "due_ms": NOW,
        "created_ms": NOW,
        "updated_ms": NOW,
        "claims": 1,
    }
    job = Job(**base | fields)
    return Claimed(job, Lease(job.id, "t0ken", job.queue, job.name, NOW + 15_000))


def recurring(rule: Recurrence = HOURLY, **fields: Any) -> Claimed:
    return claimed(recurrence=rule, unique_key=rule.key, **{"slot_ms": NOW, **fields})


def error(text: str = "no luck", **about: Any) -> Errored:
    return Errored(error=text, traceback=f"Traceback of {text}", **about)


# ---------------------------------------------------------------------------------------------------- one table

VERBS: dict[type[Change], str] = {
    Cancel: "cancel",
    Requeue: "requeue",
    Reschedule: "reschedule",
    Reprioritise: "reprioritise",
}


def test_the_table_allows_exactly_the_changes_that_stores_do() -> None:
    assert set(CHANGES_FROM) == set(get_args(Change)) == {*VERBS, Remove}
    for change, verb in VERBS.items():
        assert {state for state, by in TRANSITIONS if by == verb} == set(CHANGES_FROM[change])


def test_every_state_but_running_can_be_removed() -> None:
    assert set(CHANGES_FROM[Remove]) == set(STATES) - {"running"}


def test_states_are_live_or_final_and_only_cancel_and_requeue_cross_without_a_lease() -> None:
    assert {*LIVE, *FINAL} == set(STATES)
    crossing = {by for (state, by), end in TRANSITIONS.items() if (state in LIVE) != (end in LIVE)}
    assert crossing == {"settle succeeded", "settle failed", "cancel", "requeue"}


def test_every_state_is_reached_and_left() -> None:
    assert {state for state, _ in TRANSITIONS} == set(STATES)
    assert set(TRANSITIONS.values()) == set(STATES)


def test_the_picture_shows_what_the_table_says() -> None:
    picture = (lifecycle.__doc__ or "").split("Budgets are separate")[0]
    for state, by in TRANSITIONS:
        assert state in picture
        assert by.split()[0] in picture


OUTCOMES: list[Outcome] = [
    Succeeded(b'"done"'),
    error(),
    error(final=True),
    error(delay_ms=0),
    Snoozed(9_000),
    Released(),
    Released(2_000),
]
JOBS = [
    claimed(),
    claimed(errors=1, crashes=1),
    claimed(errors=2, crashes=2),
    recurring(),
    recurring(errors=2, crashes=2),
    recurring(structs.replace(HOURLY, until_ms=NOW)),
]


def test_what_the_deciders_decide_is_in_the_table_and_all_of_the_table_is_decided() -> None:
    decided = {settle(one, outcome, RULES, NOW).state for one in JOBS for outcome in OUTCOMES}
    lease = claimed().lease
    before: list[Settlement | None] = [begin(Broken(lease, "garbage"), RULES, NOW)]
    before += [begin(structs.replace(one, job=structs.replace(one.job, crashes=3)), RULES, NOW) for one in JOBS]
    before += [begin(one, None, NOW) for one in JOBS]
    decided |= {one.state for one in before if one is not None}
    settled = {by.removeprefix("settle "): end for (_, by), end in TRANSITIONS.items() if by.startswith("settle")}
    assert {state: state for state in decided} == settled


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
@pytest.mark.parametrize("one", JOBS, ids=lambda one: f"{one.job.errors} errors, {one.job.recurrence}")
def test_a_settlement_is_whole(one: Claimed, outcome: Outcome) -> None:
    decided = settle(one, outcome, RULES, NOW)
    assert decided.lease is one.lease
    assert decided.attempt == one.job.attempt
    assert (decided.keep is not None) == (decided.state in FINAL)
    assert decided.rearm is None or decided.state == "waiting"
    assert (decided.due is None) >= (decided.state in FINAL)
    assert (decided.result_json != b"null") == isinstance(outcome, Succeeded)


# ---------------------------------------------------------------------------------------------------- one job

# outcome, errors before > state, errors, due, what is kept
TABLE: list[tuple[Outcome, int, State, int, object, Keep | None]] = [
    (Succeeded(b"1"), 0, "succeeded", 0, None, Keep(last=1)),
    (Succeeded(b"1"), 2, "succeeded", 2, None, Keep(last=1)),
    (error(), 0, "waiting", 1, after(5_000), None),
    (error(), 1, "waiting", 2, after(5_000), None),
    (error(), 2, "failed", 3, None, Keep(last=2)),
    (error(), 7, "failed", 8, None, Keep(last=2)),
    (error(delay_ms=0), 0, "waiting", 1, after(0), None),
    (error(delay_ms=77), 1, "waiting", 2, after(77), None),
    (error(delay_ms=77), 2, "failed", 3, None, Keep(last=2)),
    (error(final=True), 0, "failed", 1, None, Keep(last=2)),
    (error(final=True), 2, "failed", 3, None, Keep(last=2)),
    (error(final=True, delay_ms=77), 0, "failed", 1, None, Keep(last=2)),
    (Snoozed(9_000), 0, "waiting", 0, after(9_000), None),
    (Snoozed(9_000), 2, "waiting", 2, after(9_000), None),
    (Released(), 0, "waiting", 0, None, None),
    (Released(), 2, "waiting", 2, None, None),
    (Released(3_000), 1, "waiting", 1, after(3_000), None),
]


@pytest.mark.parametrize("crashes", [0, 2])
@pytest.mark.parametrize(("outcome", "errors", "state", "errors_then", "due", "keep"), TABLE)
def test_every_outcome_under_every_budget(
    outcome: Outcome, errors: int, state: State, errors_then: int, due: object, keep: Keep | None, crashes: int
) -> None:
    decided = settle(claimed(errors=errors, crashes=crashes), outcome, RULES, NOW)
    assert (decided.state, decided.errors, decided.crashes) == (state, errors_then, crashes)
    assert (decided.due, decided.keep, decided.runs, decided.rearm) == (due, keep, None, None)


def test_a_success_leaves_no_error_and_keeps_its_tracebacks() -> None:
    decided = settle(claimed(errors=1, error="no luck", tracebacks=("one",)), Succeeded(b'{"a":1}'), RULES, NOW)
    assert (decided.outcome, decided.error, decided.tracebacks) == ("succeeded", None, None)
    assert decided.result_json == b'{"a":1}'


@pytest.mark.parametrize("outcome", [Snoozed(1), Released(), Released(1)], ids=repr)
def test_a_job_that_goes_back_still_shows_its_last_error(outcome: Outcome) -> None:
    decided = settle(claimed(errors=1, error="no luck", tracebacks=("one",)), outcome, RULES, NOW)
    assert (decided.error, decided.tracebacks) == ("no luck", None)


def test_an_error_that_is_retried_is_told_with_the_job() -> None:
    decided = settle(claimed(), error("oops"), RULES, NOW)
    assert (decided.outcome, decided.error, decided.tracebacks) == ("errored", "oops", ("Traceback of oops",))


def test_the_last_ten_tracebacks_are_kept() -> None:
    before = tuple(f"Traceback of {n}" for n in range(TRACEBACKS_KEPT))
    decided = settle(claimed(errors=1, tracebacks=before), error("last"), RULES, NOW)
    assert decided.tracebacks == (*before[1:], "Traceback of last")
    assert TRACEBACKS_KEPT == 10


def test_an_error_without_a_traceback_leaves_them_as_they_are() -> None:
    assert settle(claimed(tracebacks=("one",)), Errored(error="timed out"), RULES, NOW).tracebacks is None


def test_the_delay_grows_with_the_errors_and_chance_is_passed_in() -> None:
    rules = Policy(max_attempts=9, backoff=exponential("1s", cap="1h", jitter=0.5))
    dues = [settle(claimed(errors=n), error(), rules, NOW).due for n in range(4)]
    assert dues == [after(1_000), after(2_000), after(4_000), after(8_000)]
    assert settle(claimed(errors=3), error(), rules, NOW, random=0.5).due == after(6_000)


# ---------------------------------------------------------------------------------------------------- before a run


def test_a_job_with_nothing_against_it_runs() -> None:
    assert begin(claimed(errors=2, crashes=2), RULES, NOW) is None
    assert begin(recurring(errors=2, crashes=2), RULES, NOW) is None


def test_a_job_that_crashed_too_often_fails_with_the_reason() -> None:
    decided = begin(claimed(errors=1, crashes=3), RULES, NOW)
    assert decided is not None
    assert (decided.outcome, decided.state, decided.errors, decided.crashes) == ("crashed", "failed", 1, 3)
    assert (decided.error or "").startswith("crashed 3 times (max_crashes=3)")
    assert decided.keep == RULES.keep_failed


def test_crashes_do_not_use_up_attempts_nor_errors_the_crash_budget() -> None:
    assert begin(claimed(errors=99, crashes=2), RULES, NOW) is None
    assert settle(claimed(errors=0, crashes=99), error(), RULES, NOW).state == "waiting"


def test_a_doomed_job_fails_with_its_reason_and_counts_no_attempt() -> None:
    decided = begin(claimed(errors=1, doomed="its parent failed"), RULES, NOW)
    assert decided is not None
    assert (decided.outcome, decided.state, decided.errors, decided.error) == (
        "errored",
        "failed",
        1,
        "its parent failed",
    )
    assert decided.keep == RULES.keep_failed


def test_a_broken_job_fails_with_the_reason() -> None:
    lease = claimed().lease
    decided = begin(Broken(lease, "payload: JSON is malformed"), None, NOW)
    assert decided is not None
    assert (decided.lease, decided.outcome, decided.state) == (lease, "errored", "failed")
    assert decided.error == "the stored job cannot be read: payload: JSON is malformed"
    assert decided.keep == DEFAULT_POLICY.keep_failed


def test_an_unknown_name_is_released_later_each_time_and_never_failed() -> None:
    delays = []
    for claims in range(1, 40):
        decided = begin(claimed(claims=claims, crashes=99, doomed="x", errors=2), None, NOW)
        assert decided is not None
        assert decided.due is not None
        assert (decided.outcome, decided.state, decided.errors, decided.crashes) == ("released", "waiting", 2, 99)
        delays.append(decided.due.after_ms)
    assert delays == sorted(delays)
    assert delays[:6] == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000]
    assert delays[-1] == UNKNOWN_NAME_DELAY_CAP_MS == 60_000


# ---------------------------------------------------------------------------------------------------- recurring jobs


def test_a_run_that_succeeds_is_counted_and_waits_for_the_next_slot() -> None:
    one = recurring(errors=1, crashes=1, runs=4, failed_runs=2, last_error="once", error="no luck")
    decided = settle(one, Succeeded(b"5"), RULES, NOW + 10)
    assert (decided.outcome, decided.state, decided.error) == ("succeeded", "waiting", None)
    assert (decided.errors, decided.crashes) == (0, 0)
    assert decided.due == at(NOW + HOUR)
    assert decided.rearm is not None
    assert decided.runs is not None
    assert (decided.rearm.slot_ms, decided.runs.revision) == (NOW + HOUR, 7)
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
    assert decided.tracebacks == ("Traceback of last straw",)


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
    assert settle(recurring(slot_ms=None, due_ms=NOW), Succeeded(), RULES, NOW + 5).due == at(NOW + HOUR)


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


@pytest.mark.parametrize("fields", [{"crashes": 3}, {"doomed": "why"}], ids=["crashed", "doomed"])
def test_a_run_that_never_began_goes_on_with_the_next_slot(fields: dict[str, Any]) -> None:
    decided = begin(recurring(**fields), RULES, NOW)
    assert decided is not None
    assert (decided.state, decided.due, decided.errors, decided.crashes) == ("waiting", at(NOW + HOUR), 0, 0)
    assert decided.runs is not None
    assert (decided.runs.runs, decided.runs.failed_runs) == (1, 1)


GARBAGE = [
    Recurrence(key="k", cron="every now and then"),
    Recurrence(key="k", cron="0 0 * * *", zone="Nowhere/Land"),
    Recurrence(key="k", cron="* * * * *", every_ms=5),
    Recurrence(key="k"),
    Recurrence(key="k", every_ms=0),
    Recurrence(key="k", every_ms=-5),
]


@pytest.mark.parametrize("rule", GARBAGE, ids=repr)
@pytest.mark.parametrize("fields", [{}, {"crashes": 99}, {"doomed": "why"}], ids=["", "crashed", "doomed"])
def test_a_stored_recurrence_that_is_garbage_fails_its_job_with_the_reason(
    rule: Recurrence, fields: dict[str, Any]
) -> None:
    decided = begin(recurring(rule, **fields), RULES, NOW)
    assert decided is not None
    assert (decided.outcome, decided.state, decided.keep) == ("errored", "failed", RULES.keep_failed)
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


# ---------------------------------------------------------------------------------------------------- refused


def test_a_settlement_that_the_store_refused_fails_the_job() -> None:
    refused = settle(claimed(errors=1), Succeeded(b'"too large"'), RULES, NOW)
    instead = fails_instead(refused, "the result is too large", RULES)
    assert (instead.lease, instead.outcome, instead.state, instead.errors) == (refused.lease, "errored", "failed", 2)
    assert instead.error == "the store refused the settlement: the result is too large"
    assert (instead.result_json, instead.keep, instead.due) == (b"null", RULES.keep_failed, None)


def test_a_refused_result_of_a_recurring_job_fails_that_run_only() -> None:
    refused = settle(recurring(runs=4), Succeeded(b'"too large"'), RULES, NOW)
    instead = fails_instead(refused, "the result is too large", RULES)
    assert (instead.state, instead.due, instead.rearm, instead.errors) == ("waiting", refused.due, refused.rearm, 0)
    assert (instead.result_json, instead.keep) == (b"null", None)
    assert instead.runs is not None
    assert (instead.runs.runs, instead.runs.failed_runs, instead.runs.last_error) == (5, 1, instead.error)


def test_what_is_refused_twice_ends() -> None:
    once = fails_instead(settle(recurring(), Succeeded(b"1"), RULES, NOW), "no room", RULES)
    twice = fails_instead(once, "no room at all", RULES)
    assert (twice.state, twice.rearm, twice.due, twice.keep) == ("failed", None, None, RULES.keep_failed)
    assert twice.runs is not None
    assert (twice.runs.runs, twice.runs.failed_runs) == (1, 1), "it is one run still"


# ---------------------------------------------------------------------------------------------------- policy


def test_the_defaults() -> None:
    day = 86_400_000
    assert (DEFAULT_POLICY.max_attempts, DEFAULT_POLICY.max_crashes, DEFAULT_POLICY.timeout_ms) == (3, 3, None)
    assert (DEFAULT_POLICY.keep_succeeded, DEFAULT_POLICY.keep_failed) == (Keep(age_ms=7 * day), Keep(age_ms=30 * day))
    assert DEFAULT_POLICY.backoff == exponential("1s", cap="1h")


def test_what_is_said_of_a_job_goes_before_what_its_handler_says() -> None:
    handler = policy(JobOptions(max_attempts=5, timeout_ms=9, keep_failed=Keep()))
    assert policy(NO_OPTIONS, handler) is handler
    both = policy(JobOptions(max_attempts=1, backoff=fixed("1s"), keep_succeeded=Keep(last=0)), handler)
    assert (both.max_attempts, both.max_crashes, both.timeout_ms) == (1, 3, 9)
    assert (both.backoff, both.keep_succeeded, both.keep_failed) == (fixed("1s"), Keep(last=0), Keep())


# ---------------------------------------------------------------------------------------------------- what always holds

TRIED = st.sampled_from(["ok", "error", "final", "snooze", "release", "crash", "shutdown"])


def live(one: Job, decided: Settlement) -> Job:
    """The job as a store would have it after a settlement, claimed again."""
    return structs.replace(
        one,
        errors=decided.errors,
        crashes=decided.crashes,
        error=decided.error,
        tracebacks=one.tracebacks if decided.tracebacks is None else decided.tracebacks,
        claims=one.claims + 1,
        slot_ms=one.slot_ms if decided.rearm is None else decided.rearm.slot_ms,
        runs=one.runs if decided.runs is None else decided.runs.runs,
        failed_runs=one.failed_runs if decided.runs is None else decided.runs.failed_runs,
    )


def decide(one: Claimed, tried: str, rules: Policy, now_ms: int) -> Settlement | None:
    """One claim and what comes of it; None: the worker died."""
    stopped = begin(one, rules, now_ms)
    if stopped is not None or tried == "crash":
        return stopped
    outcomes: dict[str, Outcome] = {
        "ok": Succeeded(),
        "error": error(),
        "final": error(final=True),
        "snooze": Snoozed(5),
        "release": Released(),
        "shutdown": Released(0),
    }
    return settle(one, outcomes[tried], rules, now_ms)


@given(st.lists(TRIED, max_size=60), st.integers(1, 5), st.integers(1, 5))
def test_no_job_gets_more_attempts_or_crashes_than_its_budgets(
    tries: list[str], max_attempts: int, max_crashes: int
) -> None:
    rules = Policy(max_attempts=max_attempts, max_crashes=max_crashes)
    one = claimed(claims=1)
    raised = crashed = 0
    for tried in tries:
        assert one.job.attempt <= max_attempts
        decided = decide(one, tried, rules, NOW)
        if decided is None:
            crashed += 1
            job = structs.replace(one.job, crashes=one.job.crashes + 1, claims=one.job.claims + 1)
        else:
            raised += decided.outcome == "errored"
            assert (decided.errors, decided.crashes) == (raised, crashed), "each budget counts its own"
            assert decided.errors <= max_attempts
            assert decided.crashes <= max_crashes
            if decided.state != "waiting":
                spent = raised == max_attempts or crashed == max_crashes
                assert decided.state == "succeeded" or tried == "final" or spent
                return
            job = live(one.job, decided)
        one = structs.replace(one, job=job)
    assert raised < max_attempts
    assert crashed <= max_crashes


@given(
    st.lists(st.tuples(TRIED, st.integers(0, 5 * HOUR)), max_size=40),
    st.sampled_from([HOURLY, Recurrence(key="k", cron="*/7 * * * *"), Recurrence(key="k", every_ms=1)]),
    st.integers(1, 4),
)
def test_a_recurring_job_rests_only_in_waiting_and_never_has_a_slot_in_the_past(
    tries: list[tuple[str, int]], rule: Recurrence, max_attempts: int
) -> None:
    rules = Policy(max_attempts=max_attempts, max_crashes=2)
    one, now_ms, runs = recurring(rule), NOW, 0
    for tried, passed in tries:
        now_ms += passed
        decided = decide(one, tried, rules, now_ms)
        if decided is None:
            job = structs.replace(one.job, crashes=one.job.crashes + 1, claims=one.job.claims + 1)
        else:
            assert decided.state == "waiting"
            if decided.rearm is not None:
                runs += 1
                assert decided.due == at(decided.rearm.slot_ms)
                assert decided.rearm.slot_ms > now_ms
                assert decided.rearm.slot_ms == next_slot(rule, one.job.slot_ms or 0, now_ms)
                assert (decided.errors, decided.crashes) == (0, 0)
            assert (decided.rearm is None) == (decided.runs is None)
            job = live(one.job, decided)
        assert job.runs == runs
        assert job.failed_runs <= job.runs
        assert len(job.tracebacks) <= TRACEBACKS_KEPT
        one = structs.replace(one, job=job)


@given(
    st.builds(
        Recurrence,
        key=st.text(),
        cron=st.none() | st.text() | st.sampled_from(["* * * * *", "@every 5s", "TZ=x @daily", "61 * * * *"]),
        every_ms=st.none() | st.integers(),
        zone=st.text() | st.just("Europe/Berlin"),
        until_ms=st.none() | st.integers(),
    ),
    st.sampled_from(OUTCOMES),
    st.none() | st.integers(-(10**15), 10**15),
)
def test_nothing_that_is_stored_makes_a_decider_raise(rule: Recurrence, outcome: Outcome, slot_ms: int | None) -> None:
    one = recurring(rule, slot_ms=slot_ms)
    begun = begin(one, RULES, NOW)
    assert begun is None or begun.state == "failed"
    assert settle(one, outcome, RULES, NOW).state in STATES
