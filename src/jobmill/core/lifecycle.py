"""THE STATE MACHINE: one file owns every decision about the next state of a job.

                    enqueue                                   requeue
                       │          ┌───────────────────────────────────────────────────┐
                       ▼          ▼                                                   │
                  ┌─────────────────┐   claim    ┌───────────┐  settle: succeeded  ┌──┴────────┐
       reschedule │                 ├───────────►│           ├────────────────────►│ succeeded │
     reprioritize │     waiting     │            │  running  │  settle: errored,   ├───────────┤
            ┌─────┤                 │◄───────────┤           │  no attempts left;  │           │
            └────►│ (delayed and    │  settle:   │           │  crashed too often  │  failed   │
                  │  retrying are   │  errored,  │           ├────────────────────►│           │
                  │  views of it)   │  snoozed,  │           │                     ├───────────┤
                  └────────┬────────┘  released, └──┬──┬───▲─┘                     │           │
                           │           re-armed     │  │   │ claim after the       │ cancelled │
                           │                        │  └───┘ lease ended: a crash  └──▲────────┘
                           └────────────────────────┴─────────────────────────────────┘
                                                  cancel
     remove: from every state but running.
     hold, release: a waiting job that is held is claimed by nobody. pin, release pin: another rule for a recurring job.
     seize: waiting or running > running, by a process that settles a job which it did not claim; the old lease is lost.

There are two separate budgets. Errors that the handler raises count against `max_attempts`. Leases that ended count
against `max_crashes`, except that the first lease of a claim ahead does not: the job may not have started. Snoozing,
release at shutdown and rate limits count against neither. While a recurring job has a
next occurrence, it does not stay in succeeded or failed: the run is counted, and the job waits for that occurrence.

All functions in this file are pure. They take a job, an outcome and the time, and return a Settlement in which
everything is decided. The caller passes in the time and the random number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias

from msgspec import Struct, structs

from jobmill.core.job import (
    ATTEMPTS_KEPT,
    KEEP_FAILED,
    KEEP_SUCCEEDED,
    NO_OPTIONS,
    Attempt,
    Job,
    JobOptions,
    Keep,
    State,
)
from jobmill.core.recurrence import Recurrence, next_occurrence
from jobmill.core.retry import (
    DEFAULT_BACKOFF,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_CRASHES,
    Backoff,
    delay_ms,
)
from jobmill.core.values import Broken, Claimed, Due, Ended, NewJob, Rearm, Refused, Runs, Settlement, after, at
from jobmill.errors import InvalidValue

GIVEN_BACK_DELAY_CAP_MS = 60_000

# The diagram above as a table: every transition, and what causes it.
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    ("waiting", "claim"): "running",
    ("running", "claim"): "running",
    ("running", "settle succeeded"): "succeeded",
    ("running", "settle failed"): "failed",
    ("running", "settle waiting"): "waiting",
    ("waiting", "cancel"): "cancelled",
    ("running", "cancel"): "cancelled",
    ("waiting", "seize"): "running",
    ("running", "seize"): "running",
    ("succeeded", "requeue"): "waiting",
    ("failed", "requeue"): "waiting",
    ("cancelled", "requeue"): "waiting",
    ("waiting", "reschedule"): "waiting",
    ("waiting", "reprioritize"): "waiting",
    ("waiting", "hold"): "waiting",
    ("waiting", "release"): "waiting",
    ("waiting", "pin"): "waiting",
    ("running", "pin"): "running",
    ("waiting", "release pin"): "waiting",
    ("running", "release pin"): "running",
}


class Policy(Struct, frozen=True, kw_only=True):
    """The rules for one job, with every default filled in."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    max_crashes: int = DEFAULT_MAX_CRASHES
    backoff: Backoff = DEFAULT_BACKOFF
    timeout_ms: int | None = None
    keep_succeeded: Keep = KEEP_SUCCEEDED
    keep_failed: Keep = KEEP_FAILED
    #: The options that were given; the others are defaults, which a job's preset replaces.
    given: JobOptions = NO_OPTIONS


DEFAULT_POLICY = Policy()

#: Other defaults than ours, by the name of a preset. The module that knows a system adds the preset of its jobs.
PRESETS: dict[str, JobOptions] = {}


def policy(options: JobOptions, otherwise: Policy = DEFAULT_POLICY) -> Policy:
    """The rules for a job. The options of the job come first, then the options of its handler, then the defaults.

    The defaults are those of the job's preset; a job without a preset has the defaults of Jobmill.
    """
    return otherwise if options == NO_OPTIONS else _policy_of(options, otherwise)


def _policy_of(options: JobOptions, otherwise: Policy) -> Policy:
    """The same of a job with options. Headers are no rules, and would be new to the cache each time."""
    rules = options if options.headers is None else structs.replace(options, headers=None)
    return otherwise if rules == NO_OPTIONS else _policy(rules, otherwise)


# Most jobs of one handler have the same options. Measured: 0.27 us with the cache, 1.5 us without it.
@lru_cache(maxsize=1_000)
def _policy(options: JobOptions, otherwise: Policy) -> Policy:
    given = _fields(options)
    defaults = _fields(PRESETS.get(given.pop("preset", ""), NO_OPTIONS))
    defaults = {field: value for field, value in defaults.items() if getattr(otherwise.given, field) is None}
    both = structs.replace(otherwise.given, **given)
    if options.timeout_ms == 0:
        given["timeout_ms"] = None
    return structs.replace(otherwise, **defaults | given, given=both)


def _fields(options: JobOptions) -> dict[str, Any]:
    return {field: value for field, value in structs.asdict(options).items() if value is not None}


# ---------------------------------------------------------------------------------------------------- outcomes


class Succeeded(Struct, frozen=True, gc=False):
    """The handler returned."""

    result_json: bytes = b"null"


class Errored(Struct, frozen=True, kw_only=True):
    """The handler raised an error, or its timeout passed."""

    error: str
    #: The qualified name of the class of the error; None if it has none.
    error_type: str | None = None
    traceback: str | None = None
    #: The innermost frame of the application: "mail.py:12 in send".
    location: str | None = None
    #: No more attempts, even if some are left: the handler raised Fail.
    final: bool = False
    #: The delay that the backoff function of the handler returned. A backoff of the job itself comes first.
    delay_ms: int | None = None


class Snoozed(Struct, frozen=True):
    """The handler asked to be run again later."""

    delay_ms: int


class Released(Struct, frozen=True):
    """The job returns to its queue without a result: the worker stops, or this process has no handler of its name."""

    delay_ms: int | None = None


class Suspended(Struct, frozen=True, kw_only=True):
    """The handler waits for other jobs, for a signal, or for a time; it will run again from its beginning."""

    #: Jobs that are enqueued with it and that it waits for.
    children: tuple[NewJob, ...] = ()
    #: The name of the signal that it waits for.
    waits_for: str | None = None
    #: When it runs again in any case; None if it waits for children.
    due: Due | None = None


Outcome: TypeAlias = Succeeded | Errored | Snoozed | Released | Suspended


# ---------------------------------------------------------------------------------------------------- deciders


def begin(claimed: Claimed | Broken, rules: Policy | None, now_ms: int) -> Settlement | None:
    """Decide before a claimed job runs: None means that it runs; otherwise it gets this settlement and does not run.

    `rules` is None if this process has no handler of the job's name. Then the job waits again, longer each time, and so
    does a job with a recurrence that another program may read: its error says why.
    """
    if isinstance(claimed, Broken):
        return _unreadable(claimed)
    job = claimed.job
    fault = None if job.recurrence is None or rules is None else _recurrence_fault(job.recurrence, job, now_ms)
    if rules is None or fault is not None:
        delay = after(_given_back_ms(job.claims))
        return _wait(claimed, "released", delay, job.errors, fault or job.error)
    outcome: Ended = "errored"
    why, preset = None, job.options.preset
    if preset is not None and preset not in PRESETS:
        why = f"no module registers the preset {preset!r} in this worker"
    if why is None:
        why = job.deferred_error
    if why is None and job.crashes >= rules.max_crashes:
        outcome = "crashed"
        why = (
            f"crashed {job.crashes} times (max_crashes={rules.max_crashes}): each time its worker died, or stopped "
            "extending its lease, while the job ran"
        )
    return None if why is None else _end_before_run(claimed, outcome, rules, now_ms, why)


def _end_before_run(claimed: Claimed, outcome: Ended, rules: Policy, now_ms: int, why: str) -> Settlement:
    attempts = _attempts(claimed.job, Errored(error=why), now_ms) if outcome == "errored" else None
    decided = _end_run(claimed, outcome, rules, now_ms, errors=claimed.job.errors, error=why, attempts=attempts)
    return decided if claimed.recovered_from is None else _with_crash(decided, claimed)


def settle(claimed: Claimed, outcome: Outcome, rules: Policy, now_ms: int, random: float = 0.0) -> Settlement:
    """After the run: the settlement of the job."""
    match outcome:
        case Succeeded():
            decided = _succeeded(claimed, outcome, rules, now_ms)
        case Errored():
            decided = _errored(claimed, outcome, rules, now_ms, random)
        case Snoozed():
            decided = _wait(claimed, "snoozed", after(outcome.delay_ms), claimed.job.errors, claimed.job.error)
        case Suspended():
            decided = _suspended(claimed, outcome)
        case _:  # Released
            due = None if outcome.delay_ms is None else after(outcome.delay_ms)
            decided = _wait(claimed, "released", due, claimed.job.errors, claimed.job.error)
    return decided if claimed.recovered_from is None else _with_crash(decided, claimed)


def was_written(settlement: Settlement, claimed: Job, job: Job | None) -> bool:
    """Whether a job shows that the settlement of a claim was written, although its answer was lost.

    `claimed` is the job as it was claimed, `job` as it is now. If the lease had ended first, another claim would have
    counted a crash or an unstarted claim, or the job would have another state.
    """
    if job is None:
        return settlement.keep is not None and settlement.keep.at_once
    is_lost = job.crashes != settlement.crashes or job.unstarted > claimed.unstarted
    return not is_lost and (job.claims > claimed.claims or job.state == settlement.state)


def fails_instead(refused: Settlement, why: Refused, rules: Policy) -> Settlement:
    """The settlement to write instead of one that the store refused: the job fails with the reason of the store.

    Without it the job could never be settled. If the result of a recurring job was refused, only this run fails, and
    the job waits for its next occurrence. If the store refuses this settlement too, the job fails.
    """
    error = why.error
    recurs = refused.rearm is not None and refused.outcome == "succeeded"
    runs = refused.runs
    if runs is not None:
        failed_runs = runs.failed_runs + (refused.outcome == "succeeded")
        runs = structs.replace(runs, failed_runs=failed_runs, last_error=error)
    return structs.replace(
        refused,
        outcome="errored",
        state="waiting" if recurs else "failed",
        errors=0 if recurs else refused.attempt,
        error=error,
        result_json=b"null",
        due=refused.due if recurs else None,
        rearm=refused.rearm if recurs else None,
        attempts=None,
        keep=None if recurs else rules.keep_failed,
        runs=runs,
    )


def _succeeded(claimed: Claimed, outcome: Succeeded, rules: Policy, now_ms: int) -> Settlement:
    job = claimed.job
    if job.recurrence is not None:
        return _end_run(claimed, "succeeded", rules, now_ms, result_json=outcome.result_json)
    return Settlement(
        lease=claimed.lease,
        outcome="succeeded",
        state="succeeded",
        attempt=job.attempt,
        errors=job.errors,
        crashes=job.crashes,
        result_json=outcome.result_json,
        keep=rules.keep_succeeded,
    )


def _suspended(claimed: Claimed, outcome: Suspended) -> Settlement:
    decided = _wait(claimed, "suspended", outcome.due, claimed.job.errors, claimed.job.error)
    return structs.replace(decided, children=outcome.children, waits_for=outcome.waits_for)


def _errored(claimed: Claimed, outcome: Errored, rules: Policy, now_ms: int, random: float) -> Settlement:
    job = claimed.job
    errors = job.errors + 1
    attempts = _attempts(job, outcome, now_ms)
    own_ms = outcome.delay_ms if job.options.backoff is None else None
    delay = delay_ms(rules.backoff, errors, random) if own_ms is None else own_ms
    occurrence = _next_occurrence(job, now_ms)
    # If the retry would be at or after the next occurrence, the next occurrence replaces the retry.
    is_replaced = occurrence is not None and now_ms + delay >= occurrence
    if outcome.final or errors >= rules.max_attempts or is_replaced:
        error = outcome.error
        return _end_run(claimed, "errored", rules, now_ms, errors=errors, error=error, attempts=attempts)
    return _wait(claimed, "errored", after(delay), errors, outcome.error, attempts)


def _end_run(
    claimed: Claimed,
    outcome: Ended,
    rules: Policy,
    now_ms: int,
    *,
    errors: int = 0,
    error: str | None = None,
    attempts: tuple[Attempt, ...] | None = None,
    result_json: bytes = b"null",
) -> Settlement:
    """No attempt is left: a recurring job waits for its next occurrence with fresh budgets, any other job is final."""
    job = claimed.job
    occurrence = _next_occurrence(job, now_ms)
    failed = error is not None
    ended: State = "failed" if failed else "succeeded"
    keep = rules.keep_failed if failed else rules.keep_succeeded
    runs = (
        None
        if job.recurrence is None
        else Runs(
            runs=job.runs + 1,
            failed_runs=job.failed_runs + failed,
            last_error=error if failed else job.last_error,
            revision=job.recurrence.revision,
            started_ms=now_ms if job.started_ms is None else job.started_ms,
        )
    )
    return Settlement(
        lease=claimed.lease,
        outcome=outcome,
        state=ended if occurrence is None else "waiting",
        attempt=job.attempt,
        errors=errors if occurrence is None else 0,
        crashes=job.crashes if occurrence is None else 0,
        due=None if occurrence is None else at(occurrence),
        error=error,
        attempts=attempts,
        result_json=result_json,
        keep=keep if occurrence is None else None,
        runs=runs,
        rearm=None if occurrence is None else Rearm(occurrence_ms=occurrence),
    )


def _wait(
    claimed: Claimed,
    outcome: Ended,
    due: Due | None,
    errors: int,
    error: str | None,
    attempts: tuple[Attempt, ...] | None = None,
) -> Settlement:
    """The job waits for its next attempt."""
    job = claimed.job
    return Settlement(
        lease=claimed.lease,
        outcome=outcome,
        state="waiting",
        attempt=job.attempt,
        errors=errors,
        crashes=job.crashes,
        due=due,
        error=error,
        attempts=attempts,
    )


def _attempts(job: Job, errored: Errored, now_ms: int) -> tuple[Attempt, ...]:
    """The attempts of a job, with the one that errored now."""
    attempt = Attempt(
        number=job.attempt,
        started_ms=job.started_ms,
        finished_ms=now_ms,
        worker=job.worker,
        error_type=errored.error_type,
        error=errored.error,
        traceback=errored.traceback,
    )
    return (*job.attempts, attempt)[-ATTEMPTS_KEPT:]


def _with_crash(decided: Settlement, claimed: Claimed) -> Settlement:
    """With the crash of the worker that had the job before, as an attempt before the one that ends now."""
    job, started = claimed.job, not claimed.uncounted
    error = "its worker died, or stopped extending its lease, "
    error += "while the job ran" if started else "after it had claimed the job ahead: not counted as a crash"
    worker = claimed.recovered_from or None
    crash = Attempt(number=job.attempt, worker=worker, outcome="crashed", started=started, error=error)
    new = () if decided.attempts is None else decided.attempts[-1:]
    return structs.replace(decided, attempts=(*job.attempts, crash, *new)[-ATTEMPTS_KEPT:])


def _given_back_ms(claims: int) -> int:
    """How long a job waits that this process can do nothing with: longer each time."""
    return min(GIVEN_BACK_DELAY_CAP_MS, 1000 << min(claims, 16))


def _unreadable(broken: Broken) -> Settlement:
    """A job of ours fails. What another program wrote may make sense to that program: its job is given back."""
    error, job = f"the stored job cannot be read: {broken.why}", broken.foreign
    if job is not None:
        due = after(_given_back_ms(job.claims))
        return _wait(Claimed(job, broken.lease), "released", due, job.errors, error)
    return Settlement(
        lease=broken.lease,
        outcome="errored",
        state="failed",
        attempt=1,
        errors=1,
        crashes=0,
        error=error,
        keep=DEFAULT_POLICY.keep_failed,
    )


def occurrence_of(job: Job) -> int:
    """The occurrence of a recurring job's run: a retry has another due time, but the same occurrence."""
    return job.due_ms if job.occurrence_ms is None else job.occurrence_ms


def _next_occurrence(job: Job, now_ms: int) -> int | None:
    """The next occurrence of a recurring job; None when there is none, or the stored rule cannot be read."""
    try:
        return None if job.recurrence is None else next_occurrence(job.recurrence, occurrence_of(job), now_ms)
    except InvalidValue:
        return None


def _recurrence_fault(recurrence: Recurrence, job: Job, now_ms: int) -> str | None:
    """Why a recurring job could not be re-armed; another program may have stored a rule that was not validated."""
    try:
        next_occurrence(recurrence, occurrence_of(job), now_ms)
    except InvalidValue as error:
        return f"the stored recurrence cannot be read: {error}"
    return None
