"""Sentry: reports the errors of jobs, traces jobs through their queue, and checks recurring jobs in.

sentry_sdk.init(dsn="…", integrations=[JobmillIntegration(jobs)])
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from jobmill.core.cron import Cron
from jobmill.core.lifecycle import occurrence_of, policy
from jobmill.errors import InvalidValue, MissingExtra
from jobmill.handlers.observers import add_headers, waited_ms
from jobmill.worker.outcomes import frames_of_handler

try:
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.integrations import Integration
    from sentry_sdk.scope import add_global_event_processor
    from sentry_sdk.utils import event_from_exception
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sentry_sdk":
        raise
    raise MissingExtra("jobmill.sentry needs sentry-sdk: pip install 'jobmill[sentry]'") from None

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core import events
    from jobmill.core.job import Job
    from jobmill.core.recurrence import Recurrence
    from jobmill.handlers.context import Context
    from jobmill.handlers.draft import Draft
    from jobmill.handlers.enqueued import Enqueued
    from jobmill.handlers.observers import RunEnd
    from jobmill.worker.worker import Worker

#: final: errors after which a job is not retried. every: the errors of all attempts.
Capture: TypeAlias = Literal["final", "every"]

#: How long sending the last events may take when a worker stops.
FLUSH_S = 2.0
ORIGIN = "auto.queue.jobmill"
MASK = "[Filtered]"
#: Of Django 6 and its backport. Both log an error for each Task that has failed.
_LOGGERS_OF_DJANGO = ("django.tasks", "django_tasks")
MAX_SLUG = 50
#: The units of Sentry, the longest first. (It also has month and year, which have no fixed length.)
_UNITS = (("week", 604_800_000), ("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000))
_MECHANISM = {"type": "jobmill", "handled": False}
#: Frames and the last line of a traceback, as Python prints them.
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: |$)(.*)", re.MULTILINE | re.DOTALL)

#: The exceptions that were reported during this run. The tasks and threads of the run share the list.
_reported: ContextVar[list[BaseException]] = ContextVar("jobmill_sentry_reported")


class JobmillIntegration(Integration):
    """Reports what happens to the jobs of these clients.

    `capture` says which errors are reported: "final" (the default) or "every". Recurring jobs check in,
    unless `monitors` is False. `monitor_config` has fields for all their monitors, for example `{"checkin_margin": 5}`.
    """

    identifier = "jobmill"
    origin = ORIGIN

    def __init__(
        self,
        *clients: Client,
        capture: Capture = "final",
        monitors: bool = True,
        monitor_config: dict[str, Any] | None = None,
    ) -> None:
        if not clients:
            raise InvalidValue("clients", "one client or several", clients, "for example JobmillIntegration(jobs)")
        if capture not in get_args(Capture):
            raise InvalidValue("capture", "one of " + ", ".join(get_args(Capture)), capture)
        self._captures_every = capture == "every"
        self._monitors = monitors
        self._monitor_config = monitor_config or {}
        #: The workers of these clients, and the jobs whose failure was reported before it is stored.
        self._workers: set[str] = set()
        #: Whether a worker runs or has run here. Hooks get the last events after it has stopped.
        self.is_in_worker = False
        self._failing: set[str] = set()
        for jobs in clients:
            jobs.observe("run")(partial(self._run, jobs))
            jobs.observe("enqueue")(self._enqueue)
            jobs.on("failed")(self._on_failed)
            jobs.on("lease_lost")(lambda event: self._failing.discard(event.job_id))
            jobs.on("start")(self._on_start)
            jobs.on("stop")(self._on_stop)

    @staticmethod
    def setup_once() -> None:
        """Called once in a process, by the SDK."""
        add_global_event_processor(_process)

    def _is_active(self) -> bool:
        """Whether the present Sentry client has this integration."""
        return sentry_sdk.get_client().get_integration(JobmillIntegration) is self

    def reports(self, worker: str | None) -> bool:
        """Whether the jobs of this worker are reported."""
        return worker in self._workers

    # ------------------------------------------------------------------------------------------------ runs

    def _run(self, jobs: Client, context: Context) -> Generator[None, RunEnd, None]:
        if not self._is_active():
            yield
            return
        job, began = context.job, time.monotonic()
        self._failing.discard(job.id)
        _reported.set([])
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            _describe(scope, job.id, job.name, job.queue, job.attempt)
            scope.add_event_processor(partial(_add_payload, job))
            check_in = self._check_in(jobs, job)
            if check_in and job.attempt == 1:
                capture_checkin(status="in_progress", **check_in)
            with _traced("queue.process", job.name, _processed(job), incoming=job.headers) as span:
                end = yield
                _set_status(span, end.outcome)
                if end.error is not None and (end.failed or self._captures_every):
                    _capture(end.error, end.traceback)
            if end.failed:
                self._failing.add(job.id)
            if check_in and (end.failed or end.outcome == "succeeded"):
                # Only the first attempt has seen the beginning. Sentry computes the duration of the others.
                took = time.monotonic() - began if job.attempt == 1 else None
                capture_checkin(status="error" if end.failed else "ok", duration=took, **check_in)

    def _on_failed(self, event: events.Event) -> Any:
        """Report a failure without a run: a job that crashed too often, or that could not be read or stored."""
        if event.job_id in self._failing or not self._is_active():
            self._failing.discard(event.job_id)
            return None
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            _describe(scope, event.job_id, event.name, event.queue, event.attempt)
            value = {"type": "JobFailed", "value": event.data["error"], "mechanism": _MECHANISM}
            sentry_sdk.capture_event({"level": "error", "exception": {"values": [value]}})
        # Hooks get the last events after the worker has stopped.
        return None if self._workers else _flush()

    def _on_start(self, worker: Worker) -> None:
        self._workers.add(worker.name)
        self.is_in_worker = True

    async def _on_stop(self, worker: Worker) -> None:
        self._workers.discard(worker.name)
        if self._is_active():
            await _flush()

    # ------------------------------------------------------------------------------------------------ recurring jobs

    def _check_in(self, jobs: Client, job: Job) -> dict[str, Any] | None:
        """The arguments of a check-in that are the same for all attempts of an occurrence; None for no check-in."""
        schedule = None if job.recurrence is None or not self._monitors else _schedule(job.recurrence)
        if job.recurrence is None or schedule is None:
            return None
        timeout_ms = policy(job.options, jobs.handlers[job.name].policy).timeout_ms
        config = schedule | ({} if timeout_ms is None else {"max_runtime": -(-timeout_ms // 60_000)})
        return {
            "monitor_slug": monitor_slug(job.name, job.recurrence.key),
            "check_in_id": uuid.uuid5(uuid.NAMESPACE_OID, f"{job.id} {occurrence_of(job)}").hex,
            "monitor_config": config | self._monitor_config,
        }

    # ------------------------------------------------------------------------------------------------ enqueueing

    def _enqueue(self, drafts: list[Draft[Any]]) -> Generator[None, list[Enqueued[Any]], None]:
        if not self._is_active() or not _is_traced():
            yield
            return
        names, queues = {draft.name for draft in drafts}, {draft.options.queue for draft in drafts}
        data: dict[str, Any] = {
            "messaging.system": "jobmill",
            "messaging.message.body.size": sum(len(draft.payload_json) for draft in drafts),
        }
        if len(queues) == 1:
            data["messaging.destination.name"] = queues.pop()
        with _traced("queue.publish", names.pop() if len(names) == 1 else "enqueue_many", data) as span:
            trace = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
            add_headers(drafts, {name: text for name, text in trace.items() if text})
            enqueued = yield
            if len(enqueued) == 1:
                _set_data(span, {"messaging.message.id": enqueued[0].id})


# ---------------------------------------------------------------------------------------------------- events


def _process(event: Any, hint: Any) -> Any:
    """Leave out the log lines about a job that has failed: the error of the job is reported already, or will be."""
    integration = sentry_sdk.get_client().get_integration(JobmillIntegration)
    if integration is None:
        return event
    record = vars(hint["log_record"]) if "log_record" in hint else {}
    if record.get("name") == "jobmill" and "outcome" in record and integration.reports(record.get("worker")):
        return None
    if record.get("name") in _LOGGERS_OF_DJANGO and integration.is_in_worker:
        return None
    if "exc_info" in hint and (reported := _reported.get(None)) is not None:
        reported.append(hint["exc_info"][1])
    return event


def _describe(scope: sentry_sdk.Scope, id: str, name: str, queue: str, attempt: int) -> None:
    scope.set_tags({"queue": queue, "name": name, "attempt": str(attempt)})
    scope.set_context("job", {"id": id, "name": name, "queue": queue, "attempt": attempt})


def _add_payload(job: Job, event: Any, hint: Any) -> Any:
    """Add what helps to find the cause. Only the names of the arguments: their values may be secret."""
    described = event.setdefault("contexts", {}).setdefault("job", {})
    described |= {"worker": job.worker, "fence": job.claims, "payload": MASK}
    try:
        payload = job.payload
    except ValueError:
        return event
    if isinstance(payload, dict):
        described["payload"] = dict.fromkeys(payload, MASK)
    return event


def _capture(error: BaseException, traceback: str | None) -> None:
    """Report an error, unless the handler has reported or logged the same exception."""
    if any(error is one for one in _reported.get()):
        return
    values = None if error.__traceback__ is not None or traceback is None else _parsed(traceback)
    if values is not None:
        sentry_sdk.capture_event({"level": "error", "exception": {"values": [values]}})
        return
    # Without our own frames, whose variables are the arguments of the handler.
    event, hint = event_from_exception(
        (type(error), error, frames_of_handler(error)),
        client_options=sentry_sdk.get_client().options,
        mechanism=_MECHANISM,
    )
    sentry_sdk.capture_event(event, hint=hint)


def _parsed(traceback: str) -> dict[str, Any] | None:
    """The last exception of a traceback that came as text from an isolated process; None if it has another form."""
    last = traceback.rpartition("Traceback (most recent call last):\n")[2]
    frames = list(_FRAME.finditer(last))
    raised = _RAISED.search(last, frames[-1].end()) if frames else None
    if raised is None:
        return None
    module, _, name = raised[1].rpartition(".")
    found = [{"filename": one[1], "abs_path": one[1], "lineno": int(one[2]), "function": one[3]} for one in frames]
    value = {"type": name, "value": raised[2].strip(), "mechanism": _MECHANISM, "stacktrace": {"frames": found}}
    return value | ({"module": module} if module else {})


async def _flush() -> None:
    await asyncio.to_thread(sentry_sdk.flush, timeout=FLUSH_S)


# ---------------------------------------------------------------------------------------------------- spans


def _processed(job: Job) -> dict[str, Any]:
    return {
        "messaging.system": "jobmill",
        "messaging.message.id": job.id,
        "messaging.destination.name": job.queue,
        "messaging.message.body.size": len(job.payload_json),
        "messaging.message.retry.count": job.attempt - 1,
        "messaging.message.receive.latency": waited_ms(job),
    }


@contextmanager
def _traced(op: str, name: str, data: dict[str, Any], incoming: dict[str, str] | None = None) -> Iterator[Any]:
    """A span. With `incoming` headers it is the root of a process and continues the trace of the headers, if any."""
    started: Any
    if _is_streaming():
        from sentry_sdk import traces

        attributes = {"sentry.op": op, "sentry.origin": ORIGIN, "sentry.segment.name.source": "task", **data}
        if incoming is None:
            started = traces.start_span(name, attributes)
        else:
            traces.continue_trace(incoming)
            started = traces.start_span(name, attributes, parent_span=None)
    elif incoming is None:
        started = sentry_sdk.start_span(op=op, name=name, origin=ORIGIN)
    else:
        transaction = sentry_sdk.continue_trace(incoming, op=op, name=name, source="task", origin=ORIGIN)
        started = sentry_sdk.start_transaction(transaction, custom_sampling_context={"jobmill": data})
    with started as span:
        _set_data(span, data)
        yield span


def _is_traced() -> bool:
    """Whether there is a span: a span of its own for an enqueue would be a transaction."""
    scope = sentry_sdk.get_current_scope()
    return (scope.streamed_span if _is_streaming() else scope.span) is not None


def _is_streaming() -> bool:
    options = sentry_sdk.get_client().options
    lifecycle = options.get("trace_lifecycle") or (options.get("_experiments") or {}).get("trace_lifecycle")
    return bool(lifecycle == "stream")


def _set_data(span: Any, data: dict[str, Any]) -> None:
    set_one = span.set_attribute if _is_streaming() else span.set_data
    for key, value in data.items():
        set_one(key, value)


def _set_status(span: Any, outcome: str) -> None:
    if _is_streaming():
        span.status = "error" if outcome == "errored" else "ok"
    else:
        span.set_status({"errored": "internal_error", "released": "cancelled", "lost": "cancelled"}.get(outcome, "ok"))


# ---------------------------------------------------------------------------------------------------- monitors


def monitor_slug(name: str, key: str) -> str:
    """The name of the monitor of a recurring job in Sentry: lower case letters, digits, - and _, at most 50."""
    text = name if key == name else f"{name}-{key}"
    slug = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")
    if slug == text and len(slug) <= MAX_SLUG:
        return slug
    # Two keys that differ only in other characters have two monitors.
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{slug[: MAX_SLUG - 9]}-{digest}".lstrip("-")


def _schedule(recurrence: Recurrence) -> dict[str, Any] | None:
    """The schedule of a monitor; None for what Sentry has no unit for: parts of a minute."""
    cron = None if recurrence.cron is None else Cron.parse(recurrence.cron, recurrence.timezone)
    if cron is not None and cron.every_ms is None:
        seconds, _, fields = cron.fields.partition(" ")
        crontab = {"schedule": {"type": "crontab", "value": fields}, "timezone": str(cron.zone)}
        return crontab if seconds == "0" else None
    every_ms = recurrence.every_ms if cron is None else cron.every_ms
    for unit, length in _UNITS:
        if every_ms is not None and every_ms % length == 0:
            return {"schedule": {"type": "interval", "value": every_ms // length, "unit": unit}}
    return None
