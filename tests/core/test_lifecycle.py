"""The state machine: its table against its deciders, every outcome under every budget, and what always holds."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec import structs

from jobmill.core import lifecycle
from jobmill.core.changes import (
    CHANGES_FROM,
    Cancel,
    Change,
    Hold,
    Pin,
    Release,
    ReleasePin,
    Remove,
    Reprioritize,
    Requeue,
    Reschedule,
    Seize,
)
from jobmill.core.job import ATTEMPTS_KEPT, FINAL, LIVE, NO_OPTIONS, STATES, Attempt, JobOptions, Keep, State
from jobmill.core.lifecycle import (
    DEFAULT_POLICY,
    GIVEN_BACK_DELAY_CAP_MS,
    PRESETS,
    TRANSITIONS,
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
    was_written,
)
from jobmill.core.retry import Backoff, exponential, fixed
from jobmill.core.values import Broken, Claimed, Refused, Settlement, after
from tests.core.deciding import HOURLY, OUTCOMES, RULES, error, recurring
from tests.values import NOW, claimed

ONE = Attempt(number=1, error="one")

# ---------------------------------------------------------------------------------------------------- one table

VERBS: dict[type[Change], str] = {
    Cancel: "cancel",
    Requeue: "requeue",
    Reschedule: "reschedule",
    Reprioritize: "reprioritize",
    Seize: "seize",
    Hold: "hold",
    Release: "release",
    Pin: "pin",
    ReleasePin: "release pin",
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


def test_the_backoff_of_a_job_comes_before_the_backoff_function_of_its_handler() -> None:
    options = JobOptions(backoff=fixed("9s"))
    decided = settle(claimed(options=options), error(delay_ms=77), policy(options, RULES), NOW)
    assert decided.due == after(9_000)


@pytest.mark.parametrize("crashes", [0, 2])
@pytest.mark.parametrize(("outcome", "errors", "state", "errors_then", "due", "keep"), TABLE)
def test_every_outcome_under_every_budget(
    outcome: Outcome, errors: int, state: State, errors_then: int, due: object, keep: Keep | None, crashes: int
) -> None:
    decided = settle(claimed(errors=errors, crashes=crashes), outcome, RULES, NOW)
    assert (decided.state, decided.errors, decided.crashes) == (state, errors_then, crashes)
    assert (decided.due, decided.keep, decided.runs, decided.rearm) == (due, keep, None, None)


def test_a_success_leaves_no_error_and_keeps_its_attempts() -> None:
    decided = settle(claimed(errors=1, error="no luck", attempts=(ONE,)), Succeeded(b'{"a":1}'), RULES, NOW)
    assert (decided.outcome, decided.error, decided.attempts) == ("succeeded", None, None)
    assert decided.result_json == b'{"a":1}'


@pytest.mark.parametrize("outcome", [Snoozed(1), Released(), Released(1)], ids=repr)
def test_a_job_that_goes_back_still_shows_its_last_error(outcome: Outcome) -> None:
    decided = settle(claimed(errors=1, error="no luck", attempts=(ONE,)), outcome, RULES, NOW)
    assert (decided.error, decided.attempts) == ("no luck", None)


def test_an_error_that_is_retried_is_told_with_the_job() -> None:
    one = claimed(started_ms=NOW - 5, worker="w")
    decided = settle(one, Errored(error="oops", error_type="app.Oops", traceback="Traceback of oops"), RULES, NOW)
    assert (decided.outcome, decided.error) == ("errored", "oops")
    attempt = Attempt(number=1, started_ms=NOW - 5, finished_ms=NOW, worker="w", error_type="app.Oops", error="oops")
    assert decided.attempts == (structs.replace(attempt, traceback="Traceback of oops"),)


def test_the_last_ten_attempts_are_kept() -> None:
    before = tuple(Attempt(number=n, error=str(n)) for n in range(ATTEMPTS_KEPT))
    decided = settle(claimed(errors=1, attempts=before), error("last"), RULES, NOW)
    assert decided.attempts is not None
    assert (decided.attempts[:-1], decided.attempts[-1].error) == (before[1:], "last")
    assert ATTEMPTS_KEPT == 10


def test_an_error_without_a_traceback_is_an_attempt_too() -> None:
    decided = settle(claimed(attempts=(ONE,)), Errored(error="timed out"), RULES, NOW)
    assert decided.attempts is not None
    assert (decided.attempts[0], decided.attempts[1].error) == (ONE, "timed out")


@pytest.mark.parametrize("outcome", [Succeeded(), Snoozed(1), Released(), error("oops")], ids=repr)
def test_a_crash_becomes_an_attempt_when_the_next_one_ends(outcome: Outcome) -> None:
    recovered = structs.replace(claimed(crashes=1, attempts=(ONE,)), recovered_from="dead")
    attempts = settle(recovered, outcome, RULES, NOW).attempts
    assert attempts is not None
    assert attempts[0] == ONE
    assert (attempts[1].outcome, attempts[1].worker, attempts[1].number) == ("crashed", "dead", 1)
    assert [attempt.error for attempt in attempts[2:]] == (["oops"] if isinstance(outcome, Errored) else [])


def test_the_crash_that_ends_a_job_is_an_attempt() -> None:
    recovered = structs.replace(claimed(crashes=RULES.max_crashes), recovered_from="")
    decided = begin(recovered, RULES, NOW)
    assert decided is not None
    assert [(one.outcome, one.worker) for one in decided.attempts or ()] == [("crashed", None)]


def test_headers_change_no_rules() -> None:
    assert policy(JobOptions(headers={"a": "b"})) is DEFAULT_POLICY
    assert policy(JobOptions(headers={"a": "b"}, max_attempts=9)) == policy(JobOptions(max_attempts=9))


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
    decided = begin(claimed(errors=1, deferred_error="its parent failed"), RULES, NOW)
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


def test_a_broken_job_of_another_program_is_given_back_later_each_time() -> None:
    delays = []
    for claims in range(1, 8):
        one = claimed(claims=claims, errors=2, crashes=3)
        decided = begin(Broken(one.lease, "data: too deep", one.job), None, NOW)
        assert decided is not None
        assert decided.due is not None
        assert (decided.outcome, decided.state, decided.keep) == ("released", "waiting", None)
        assert (decided.errors, decided.crashes) == (2, 3)
        assert decided.error == "the stored job cannot be read: data: too deep"
        delays.append(decided.due.after_ms)
    assert delays == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_an_unknown_name_is_released_later_each_time_and_never_failed() -> None:
    delays = []
    for claims in range(1, 40):
        decided = begin(claimed(claims=claims, crashes=99, deferred_error="x", errors=2), None, NOW)
        assert decided is not None
        assert decided.due is not None
        assert (decided.outcome, decided.state, decided.errors, decided.crashes) == ("released", "waiting", 2, 99)
        delays.append(decided.due.after_ms)
    assert delays == sorted(delays)
    assert delays[:6] == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000]
    assert delays[-1] == GIVEN_BACK_DELAY_CAP_MS == 60_000


# ---------------------------------------------------------------------------------------------------- refused


def test_a_settlement_that_the_store_refused_fails_the_job() -> None:
    refused = settle(claimed(errors=1), Succeeded(b'"too large"'), RULES, NOW)
    instead = fails_instead(refused, Refused("the result is too large"), RULES)
    assert (instead.lease, instead.outcome, instead.state, instead.errors) == (refused.lease, "errored", "failed", 2)
    assert instead.error == "the store refused the settlement: the result is too large"
    assert (instead.result_json, instead.keep, instead.due) == (b"null", RULES.keep_failed, None)


def test_a_refused_result_of_a_recurring_job_fails_that_run_only() -> None:
    refused = settle(recurring(runs=4), Succeeded(b'"too large"'), RULES, NOW)
    instead = fails_instead(refused, Refused("the result is too large"), RULES)
    assert (instead.state, instead.due, instead.rearm, instead.errors) == ("waiting", refused.due, refused.rearm, 0)
    assert (instead.result_json, instead.keep) == (b"null", None)
    assert instead.runs is not None
    assert (instead.runs.runs, instead.runs.failed_runs, instead.runs.last_error) == (5, 1, instead.error)


def test_what_is_refused_twice_ends() -> None:
    once = fails_instead(settle(recurring(), Succeeded(b"1"), RULES, NOW), Refused("no room"), RULES)
    twice = fails_instead(once, Refused("no room at all"), RULES)
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


PRESETS["other"] = JobOptions(max_attempts=6, backoff=exponential("1s", cap="60s"))


def test_a_job_with_a_preset_that_is_not_registered_fails_before_it_runs() -> None:
    decided = begin(claimed(options=JobOptions(preset="nobody")), DEFAULT_POLICY, NOW)
    assert decided is not None
    assert (decided.state, decided.error) == ("failed", "no module registers the preset 'nobody' in this worker")
    assert begin(claimed(options=JobOptions(preset="other")), DEFAULT_POLICY, NOW) is None


def test_a_preset_says_what_neither_the_job_nor_its_handler_says() -> None:
    rule = exponential("1s", cap="60s")
    preset = policy(JobOptions(preset="other"))
    assert (preset.max_attempts, preset.backoff) == (6, rule)
    rest = structs.replace(preset, max_attempts=3, backoff=DEFAULT_POLICY.backoff)
    assert rest == DEFAULT_POLICY, "the rest is as usual"


@pytest.mark.parametrize(
    ("job", "handler", "expected"),
    [
        (JobOptions(), JobOptions(), (6, exponential("1s", cap="60s"))),
        # A handler that says what is usual has said it.
        (JobOptions(), JobOptions(max_attempts=3), (3, exponential("1s", cap="60s"))),
        (JobOptions(), JobOptions(backoff=fixed("5s")), (6, fixed("5s"))),
        (JobOptions(max_attempts=1), JobOptions(), (1, exponential("1s", cap="60s"))),
        (JobOptions(backoff=fixed("2s")), JobOptions(), (6, fixed("2s"))),
        (JobOptions(max_attempts=1), JobOptions(max_attempts=3, timeout_ms=5), (1, exponential("1s", cap="60s"))),
        (JobOptions(backoff=fixed("2s"), timeout_ms=0), JobOptions(backoff=fixed("5s")), (6, fixed("2s"))),
    ],
)
def test_a_preset_comes_after_both(job: JobOptions, handler: JobOptions, expected: tuple[int, Backoff]) -> None:
    both = policy(structs.replace(job, preset="other"), policy(handler))
    assert (both.max_attempts, both.backoff) == expected
    assert both.timeout_ms == (handler.timeout_ms if job.timeout_ms is None else None)
    # And without the preset nothing of it is left.
    usual = policy(job, policy(handler))
    assert usual.max_attempts == (job.max_attempts or handler.max_attempts or 3)
    assert usual.backoff == (job.backoff or handler.backoff or DEFAULT_POLICY.backoff)


# ---------------------------------------------------------------------------------------------------- a lost answer


@pytest.mark.parametrize(
    ("state", "claims", "crashes", "written"),
    [
        ("succeeded", 4, 1, True),
        ("running", 4, 1, False),  # the lease has ended, and nobody has taken the job over so far
        ("cancelled", 4, 1, False),
        ("succeeded", 5, 2, False),  # another worker took the job over
        ("running", 5, 1, True),  # requeued after its end
    ],
)
def test_whether_a_settlement_without_an_answer_was_written(
    state: Any, claims: int, crashes: int, written: bool
) -> None:
    run = claimed(claims=4, crashes=1)
    settlement = settle(run, Succeeded(), DEFAULT_POLICY, NOW)
    job = structs.replace(run.job, state=state, claims=claims, crashes=crashes)
    assert was_written(settlement, run.job, job) is written


def test_a_job_that_is_gone_was_settled_if_it_is_not_kept() -> None:
    run = claimed(claims=4)
    kept = settle(run, Succeeded(), DEFAULT_POLICY, NOW)
    assert not was_written(kept, run.job, None)
    assert was_written(structs.replace(kept, keep=Keep(last=0)), run.job, None)
