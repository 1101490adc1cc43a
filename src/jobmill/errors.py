"""All errors that Jobmill raises, and two exceptions with which a handler decides what happens to its job.

    JobmillError
    ├── InvalidValue (ValueError)   a value was refused before any write: field, expected, given
    │   └── PayloadTooLarge
    ├── HandlerNotFound             this client has no handler of that name
    ├── MissingExtra                a store's driver, a web server or an SDK is not installed
    ├── JobNotFound                 the job is not in the store: it was removed, or never existed
    ├── JobFailed                   the result of a failed job was awaited
    │   └── JobCancelled
    ├── DependencyFailed            a handler needs the result of a job that did not succeed
    ├── StepFailed                  a step of an earlier run of this job had failed
    ├── StepsChanged                a handler does not take the steps that it has recorded
    ├── ResultTimeout (TimeoutError)
    └── StoreError                  the store refused a call, or could not do it
        ├── StoreUnavailable        it cannot be reached now: a later retry may work
        │   ├── StoreBusy           another connection holds its write lock
        │   └── LoginRefused        the server does not accept this user or password
        ├── SchemaTooOld            migrations are missing: run `jobmill migrate` of this version
        ├── SchemaTooNew            written by a newer Jobmill; nothing was changed
        └── UnsafeStore             a database is not safe here (a network file system)

    For handlers, and not JobmillErrors: Fail, Snooze

Expected races are return values, never exceptions: a lost lease, a duplicate, a refused change.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmill.core.job import Job


class JobmillError(Exception):
    """The base class of all errors that Jobmill raises."""


class InvalidValue(JobmillError, ValueError):
    """A value was refused before anything was written."""

    def __init__(self, field: str, expected: str, given: object, advice: str = "", *, public: str = "") -> None:
        self.field = field
        self.expected = expected
        self.given = given
        self.advice = advice
        self._public = public
        super().__init__(f"{field}: expected {expected}, got {shown(given)}" + (f"; {advice}" if advice else ""))

    def without_value(self) -> str:
        """The message with `public`, or with the type of the value, instead of the value, which may be a secret."""
        advice = f"; {self.advice}" if self.advice else ""
        rest = f"; {self._public}" if self._public else f", got a value of type {type(self.given).__name__}{advice}"
        return f"{self.field}: expected {self.expected}{rest}"


class PayloadTooLarge(InvalidValue):
    """Payload and options together, or a result, are over the limit of 10 MB."""

    def __init__(self, size: int, limit: int, field: str = "payload") -> None:
        self.size = size
        self.limit = limit
        mib = 1024 * 1024
        super().__init__(field, f"at most {limit} bytes of JSON", size)
        self.args = (
            f"Job {field} size {size / mib:.1f} MB exceeds limit of {limit / mib:.1f} MB; "
            f"store the data elsewhere and {'return' if field == 'result' else 'pass'} a reference to it",
        )


class HandlerNotFound(JobmillError):
    """This client has no handler of that name."""


class MissingExtra(JobmillError):
    """A required package (a store's driver, a web server, an SDK) is not installed."""


class JobNotFound(JobmillError):
    """The job is not in the store: it was removed, or never existed."""


class JobFailed(JobmillError):
    """The awaited job failed; the message is its error, and `job` is the job."""

    def __init__(self, message: str, job: Job) -> None:
        self.job = job
        super().__init__(message)

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, Job]]:
        """Pickle creates the error again from both arguments, for example in another process."""
        return type(self), (str(self), self.job)


class JobCancelled(JobFailed):
    """The awaited job was cancelled."""


class DependencyFailed(JobmillError):
    """A handler needs the result of a job that failed or was cancelled."""


class StepFailed(JobmillError):
    """A step failed in an earlier run of this job, and the handler continued after it. The message is its error."""


class StepsChanged(JobmillError):
    """A handler takes other steps, or takes them in another order, than an earlier run of the same job recorded."""


class ResultTimeout(JobmillError, TimeoutError):
    """The awaited job was not final in time; it is not affected."""


class StoreError(JobmillError):
    """The store refused a call, or could not do it."""


class StoreUnavailable(StoreError):
    """The store cannot be reached now; the same call may work later."""


class StoreBusy(StoreUnavailable):
    """Another connection holds the store's write lock."""


class LoginRefused(StoreUnavailable):
    """The server does not accept this user or password. A running worker tries again; a worker that starts ends."""


class SchemaTooOld(StoreError):
    """Migrations are missing: run `jobmill migrate`."""


class SchemaTooNew(StoreError):
    """The store was written by a newer Jobmill; nothing was changed."""


class UnsafeStore(StoreError):
    """A database is not safe at this location, such as a network file system."""


class Fail(Exception):
    """Raised by a handler: the job has failed, even if attempts are left."""


class Snooze(Exception):
    """Raised by a handler: run the job again after `delay`, without counting an attempt."""

    def __init__(self, delay: float | str | timedelta) -> None:
        self.delay = delay
        super().__init__(f"snoozed for {delay}")


def shown(given: object, max_length: int = 120) -> str:
    """A value as error messages show it: its repr, cut to one line."""
    try:
        text = repr(given)
    except Exception:
        text = f"<{type(given).__name__}>"
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
