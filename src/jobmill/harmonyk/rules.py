"""Harmonyk's rules: when a job retries, its dedupe key, and a job's state in Harmonyk's words."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from jobmill.core import unique_keys
from jobmill.core.job import Job, JobOptions, State
from jobmill.core.lifecycle import PRESETS
from jobmill.core.retry import delay_ms, exponential
from jobmill.errors import InvalidValue

Status: TypeAlias = Literal["queued", "running", "success", "failed"]

#: The preset of Harmonyk's jobs: they retry by Harmonyk's rule.
PRESET: Final = "harmonyk"

# Harmonyk's rule for a failed run is check, increment, back off: while `attempts` is below 5, it is counted up and the
# job waits for the delay of the new number. So a job has five retries, after 1, 2, 4, 8 and 16 s: six runs in all.
DEFAULT_MAX_ATTEMPTS: Final = 5
BACKOFF: Final = exponential("1s", cap="60s")

# Harmonyk's `max_attempts` counts retries, ours counts runs.
PRESETS[PRESET] = JobOptions(max_attempts=DEFAULT_MAX_ATTEMPTS + 1, backoff=BACKOFF)

STATUS_OF: dict[State, Status] = {
    "waiting": "queued",
    "running": "running",
    "succeeded": "success",
    "failed": "failed",
    "cancelled": "failed",
}


def backoff_delay_ms(attempts: int) -> int:
    """The delay before the next run, without jitter: 1 s after the first, then twice as long each time, up to 60 s."""
    return delay_ms(BACKOFF, attempts)


def can_retry(status: Status, attempts: int, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> bool:
    """Whether a job may run again: never when success or running, else while `attempts` is below the maximum.

    `attempts` was counted before the run that failed: check, increment, back off. So there are `max_attempts` retries,
    and one run more than that.
    """
    if status not in get_args(Status):
        raise InvalidValue("status", "one of " + ", ".join(get_args(Status)), status)
    return status not in ("success", "running") and attempts < max_attempts


def dedupe_key(type: str, org_id: str | None, payload: object) -> str:
    """`type::org_id::payload`, byte for byte as Harmonyk's JavaScript has it; without an `org_id`, "global".

    The payload is printed as JSON with the keys sorted at every level. InvalidValue for a payload that is not JSON.
    """
    return unique_keys.dedupe_key(type, org_id, payload)


def status(job: Job) -> Status:
    """A job's state in Harmonyk's word; it has none for cancelled, which is failed (see `last_error`)."""
    return STATUS_OF[job.state]


def last_error(job: Job) -> str | None:
    """The last error; "cancelled" where a job was cancelled."""
    return "cancelled" if job.state == "cancelled" else job.error
