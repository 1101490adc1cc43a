"""Every error that Jobmill raises, and the two that a handler may raise to steer its job.

    JobmillError
    ├── InvalidValue (ValueError)        a value was refused before any write: field, expected, given
    │   └── PayloadTooLarge
    ├── HandlerNotFound             no handler of that name is registered here
    ├── MissingExtra                a store's driver or a web server is not installed
    ├── JobNotFound                        the job is not in the store (any more)
    ├── JobFailed                   somebody awaited the result of a job that failed
    │   └── JobCancelled
    ├── ResultTimeout (TimeoutError)
    └── StoreError                  the store did not do what it was asked
        ├── StoreUnavailable               it cannot be reached now: trying again later may work
        │   └── StoreBusy           another connection holds its write lock
        ├── SchemaTooOld            `jobmill migrate` has not been run, or not by this version
        ├── SchemaTooNew            written by a newer Jobmill; nothing was touched
        └── UnsafeStore             this place cannot keep a database safe (a network file system)

    Steering (not errors, not JobmillErrors): Fail, Snooze

Expected races are return values, never exceptions: a lost lease, a duplicate, a refused change.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmill.core.job import Job


class JobmillError(Exception):
    """The root of all errors that Jobmill raises."""


class InvalidValue(JobmillError, ValueError):
    """A value was refused before anything was written."""

    def __init__(self, field: str, expected: str, given: object, advice: str = "") -> None:
        self.field = field
        self.expected = expected
        self.given = given
        self.advice = advice
        super().__init__(f"{field}: expected {expected}, got {shown(given)}" + (f"; {advice}" if advice else ""))


class PayloadTooLarge(InvalidValue):
    """Payload and options together are over the limit of 10 MB."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        mib = 1024 * 1024
        super().__init__("payload", f"at most {limit} bytes of JSON", size)
        self.args = (
            f"Job payload size {size / mib:.1f} MB exceeds limit of {limit / mib:.1f} MB; "
            "store the data elsewhere and pass a reference to it",
        )


class HandlerNotFound(JobmillError):
    """No handler of that name is registered with this client."""


class MissingExtra(JobmillError):
    """A package that this needs (a store's driver, a web server) is not installed."""


class JobNotFound(JobmillError):
    """The job is not in the store: never enqueued, or already removed."""


class JobFailed(JobmillError):
    """The awaited job failed; the message is its error, and `job` is the job."""

    def __init__(self, message: str, job: Job) -> None:
        self.job = job
        super().__init__(message)

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, Job]]:
        """Two arguments are needed to make it again, in another process too."""
        return type(self), (str(self), self.job)


class JobCancelled(JobFailed):
    """The awaited job was cancelled."""


class ResultTimeout(JobmillError, TimeoutError):
    """The awaited job did not end in time; it goes on."""


class StoreError(JobmillError):
    """The store did not do what it was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be reached now; the same call may work later."""


class StoreBusy(StoreUnavailable):
    """Another connection holds the store's write lock."""


class SchemaTooOld(StoreError):
    """Migrations are missing: run `jobmill migrate`."""


class SchemaTooNew(StoreError):
    """The store was written by a newer Jobmill; nothing was touched."""


class UnsafeStore(StoreError):
    """This place cannot keep a database safe."""


class Fail(Exception):
    """Raised by a handler: this job has failed, whatever attempts are left."""


class Snooze(Exception):
    """Raised by a handler: run this job again after `delay`, counting nothing."""

    def __init__(self, delay: float | str | timedelta) -> None:
        self.delay = delay
        super().__init__(f"snoozed for {delay}")


def shown(given: object, most: int = 120) -> str:
    """A value as error messages show it: its repr, cut to a line."""
    try:
        text = repr(given)
    except Exception:
        text = f"<{type(given).__name__}>"
    return text if len(text) <= most else text[: most - 1] + "…"
