"""The job: the value that every store returns and that nothing mutates.

Instants are whole milliseconds since 1970 in UTC (`due_ms`); `due_at` and its siblings show the same instant as an
aware datetime. Payload and result cross every layer as JSON text and are decoded where they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw, Struct

from jobmill.core.due import Held
from jobmill.core.durations import to_datetime
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import Backoff

State = Literal["waiting", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
LIVE: tuple[State, ...] = ("waiting", "running")
FINAL: tuple[State, ...] = ("succeeded", "failed", "cancelled")

NULL = Raw(b"null")
ATTEMPTS_KEPT = 10
LOG_LINES_KEPT = 1_000


class Keep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long a final job stays: for ever (the default), as one of the `last` n, or until it is `age_ms` old."""

    last: int | None = None
    age_ms: int | None = None

    @property
    def at_once(self) -> bool:
        """Whether the job is removed in the same step that makes it final."""
        return self.last == 0 or self.age_ms == 0


DAY_MS = 24 * 60 * 60 * 1000
#: Defaults: a week for succeeded jobs, a month for jobs that a person may want to inspect.
KEEP_SUCCEEDED = Keep(age_ms=7 * DAY_MS)
KEEP_FAILED = Keep(age_ms=30 * DAY_MS)
#: For the runs of recurring jobs, which a store keeps as records for the statistics, or as jobs. There may be one every
#: second.
RUNS_KEPT_MS = DAY_MS
KEEP_RUN = Keep(age_ms=RUNS_KEPT_MS)


class Progress(Struct, frozen=True):
    """The progress that a running job reported: 0 to 100, and a message."""

    value: float
    message: str | None = None


LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)


class LogEntry(Struct, frozen=True):
    """A log line as its handler wrote it."""

    text: str
    level: LogLevel = "info"


class Attempt(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One attempt that did not succeed. What an older version or another program stored has a traceback only."""

    number: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    worker: str | None = None
    #: "errored": the handler raised an error, or its timeout passed. "crashed": the lease ended while it ran.
    outcome: Literal["errored", "crashed"] = "errored"
    #: False for a job that was claimed ahead and whose lease ended: it may not have started, and no crash was counted.
    started: bool = True
    #: The qualified name of the class, without "builtins"; None if the error has no class.
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None


def attempts_from_tracebacks(tracebacks: Iterable[str]) -> tuple[Attempt, ...]:
    """Attempts of which only the tracebacks were stored."""
    return tuple(Attempt(traceback=text) for text in tracebacks)


class JobOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of one job, given when it was enqueued; None means the option of its handler, else the default.

    A `timeout_ms` of 0 means no timeout, even where the handler has one. A `preset` names other defaults than ours.
    `headers` are texts that travel with the job, such as the context of a trace: they are no rules for the job.
    """

    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: Backoff | None = None
    timeout_ms: int | None = None
    keep_succeeded: Keep | None = None
    keep_failed: Keep | None = None
    preset: str | None = None
    headers: dict[str, str] | None = None


NO_OPTIONS = JobOptions()

_decode_options = msgspec.json.Decoder(JobOptions).decode


def keep_final(options: JobOptions, state: State) -> Keep:
    """How long a final job with these options stays if no worker ended it, which knows the options of its handler."""
    if state == "succeeded":
        return options.keep_succeeded or KEEP_SUCCEEDED
    return options.keep_failed or KEEP_FAILED


def keep_cancelled(options_json: str | None) -> Keep:
    """How long a cancelled job with these stored options stays; the default where they cannot be read."""
    try:
        options = NO_OPTIONS if options_json is None else _decode_options(options_json)
    except msgspec.MsgspecError:
        options = NO_OPTIONS
    return keep_final(options, "cancelled")


# As JSON, two fields keep the names under which stores have them.
class Job(
    Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"occurrence_ms": "slot_ms", "deferred_error": "doomed"},
):
    """One job as its store holds it. The lease token is not part of it, so no listing and no log can show it."""

    id: str
    name: str
    queue: str
    payload_json: Raw
    state: State
    priority: int
    due_ms: int
    created_ms: int
    updated_ms: int
    started_ms: int | None = None
    finished_ms: int | None = None
    errors: int = 0
    crashes: int = 0
    claims: int = 0
    #: How many claims were lost before the job had started, as far as is known; at most 1, because later losses count
    #: as crashes. Such a job is never claimed ahead again.
    unstarted: int = 0
    worker: str | None = None
    progress: Progress | None = None
    result_json: Raw = NULL
    error: str | None = None
    #: The last attempts that errored or crashed. A crash is added when the next attempt ends.
    attempts: tuple[Attempt, ...] = ()
    unique_key: str | None = None
    tenant: str | None = None
    options: JobOptions = NO_OPTIONS
    # A recurring job: its rule, the occurrence of its present run, and the results of its earlier runs.
    recurrence: Recurrence | None = None
    occurrence_ms: int | None = None
    runs: int = 0
    failed_runs: int = 0
    last_error: str | None = None
    last_finished_ms: int | None = None
    #: What holds a waiting job back; its `due_ms` is then NEVER_MS.
    held: Held | None = None
    #: The flow that the job belongs to, and the number of jobs that it waits for or has waited for.
    flow: str | None = None
    dependencies: int = 0
    #: The name of the signal that a waiting job waits for, until its due time.
    waits_for: str | None = None
    #: The jobs of its queue with the same lane share limits.
    lane: str | None = None
    # Why the next claim must fail this job instead of running it: BullMQ's deferred failure, or an unreadable job.
    deferred_error: str | None = None

    @property
    def payload(self) -> Any:
        """The arguments of the handler, decoded."""
        return msgspec.json.decode(self.payload_json)

    @property
    def result(self) -> Any:
        """What the handler returned, decoded; None before and without success."""
        return msgspec.json.decode(self.result_json)

    @property
    def attempt(self) -> int:
        """The number of the present run, of the next one while waiting, of the last one when failed."""
        return max(self.errors, 1) if self.state == "failed" else self.errors + 1

    @property
    def error_type(self) -> str | None:
        """The class of the error of the last attempt that did not succeed."""
        return self.attempts[-1].error_type if self.attempts else None

    @property
    def headers(self) -> dict[str, str]:
        """Texts that the caller of `enqueue` gave beside the payload."""
        return self.options.headers or {}

    @property
    def due_at(self) -> datetime | None:
        """When the job may be claimed, or could have been; None for a held job that is due after its release."""
        return _datetime(self.due_ms if self.held is None else self.held.due.at_ms)

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued."""
        return to_datetime(self.created_ms)

    @property
    def updated_at(self) -> datetime:
        """When the job last changed."""
        return to_datetime(self.updated_ms)

    @property
    def started_at(self) -> datetime | None:
        """When the job was last claimed."""
        return _datetime(self.started_ms)

    @property
    def finished_at(self) -> datetime | None:
        """When the job became final."""
        return _datetime(self.finished_ms)

    @property
    def last_finished_at(self) -> datetime | None:
        """When the last run of a recurring job ended."""
        return _datetime(self.last_finished_ms)

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINAL

    def __repr__(self) -> str:
        """What identifies the job and says how it is; not its payload, which may be large or secret."""
        shown = ("id", "name", "queue", "state", "attempt", "due_at", "worker", "error")
        given = ((field, getattr(self, field)) for field in shown)
        return f"Job({', '.join(f'{field}={_short(value)}' for field, value in given if value is not None)})"

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON-ready values, as `--json` prints it."""
        return {name: _plain(_shown(self, name)) for name in _SHOWN}


_SHOWN = (
    *("id", "name", "queue", "payload", "state", "priority", "due_at", "held", "created_at", "updated_at"),
    *(
        "started_at",
        "finished_at",
        "attempt",
        "errors",
        "crashes",
        "unstarted",
        "claims",
        "worker",
        "progress",
        "result",
    ),
    *("error", "attempts", "unique_key", "tenant", "headers", "options", "recurrence", "runs", "failed_runs"),
    *("last_error", "last_finished_at", "flow", "dependencies", "waits_for", "lane"),
)


def _shown(job: Job, name: str) -> Any:
    if name not in ("payload", "result"):
        return getattr(job, name)
    raw: Raw = getattr(job, f"{name}_json")
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        # A listing also shows what another program wrote as garbage.
        return bytes(raw).decode(errors="replace")


def _short(value: Any) -> str:
    text = value.isoformat() if isinstance(value, datetime) else repr(value)
    return text if len(text) <= 100 else text[:99] + "…"


def _datetime(ms: int | None) -> datetime | None:
    return None if ms is None else to_datetime(ms)


def _plain(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    if isinstance(value, Recurrence) and "zone" in plain:
        plain["timezone"] = plain.pop("zone")
    elif isinstance(value, JobOptions):
        plain.pop("headers", None)
    return plain
