"""What holds for every job, whatever it goes through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from jobmill.core.job import ATTEMPTS_KEPT, STATES, Job
from jobmill.core.lifecycle import Outcome, Policy, Released, Snoozed, Succeeded, begin, settle
from jobmill.core.recurrence import Recurrence, next_occurrence
from jobmill.core.values import Claimed, Settlement, at
from tests.core.deciding import HOUR, HOURLY, OUTCOMES, RULES, error, recurring
from tests.values import NOW, claimed

TRIED = st.sampled_from(["ok", "error", "final", "snooze", "release", "crash", "shutdown"])


def live(one: Job, decided: Settlement) -> Job:
    """The job as a store would have it after a settlement, claimed again."""
    return structs.replace(
        one,
        errors=decided.errors,
        crashes=decided.crashes,
        error=decided.error,
        attempts=one.attempts if decided.attempts is None else decided.attempts,
        claims=one.claims + 1,
        occurrence_ms=one.occurrence_ms if decided.rearm is None else decided.rearm.occurrence_ms,
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
                assert decided.due == at(decided.rearm.occurrence_ms)
                assert decided.rearm.occurrence_ms > now_ms
                assert decided.rearm.occurrence_ms == next_occurrence(rule, one.job.occurrence_ms or 0, now_ms)
                assert (decided.errors, decided.crashes) == (0, 0)
            assert (decided.rearm is None) == (decided.runs is None)
            job = live(one.job, decided)
        assert job.runs == runs
        assert job.failed_runs <= job.runs
        assert len(job.attempts) <= ATTEMPTS_KEPT
        one = structs.replace(one, job=job)


@given(
    st.builds(
        Recurrence,
        key=st.text(),
        cron=st.none() | st.text() | st.sampled_from(["* * * * *", "@every 5s", "TZ=x @daily", "61 * * * *"]),
        every_ms=st.none() | st.integers(),
        timezone=st.text() | st.just("Europe/Berlin"),
        until_ms=st.none() | st.integers(),
    ),
    st.sampled_from(OUTCOMES),
    st.none() | st.integers(-(10**15), 10**15),
)
def test_nothing_that_is_stored_makes_a_decider_raise(
    rule: Recurrence, outcome: Outcome, occurrence_ms: int | None
) -> None:
    one = recurring(rule, occurrence_ms=occurrence_ms)
    begun = begin(one, RULES, NOW)
    assert begun is None or begun.state == "waiting"
    assert settle(one, outcome, RULES, NOW).state in STATES
