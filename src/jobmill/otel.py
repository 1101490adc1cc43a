"""OpenTelemetry: spans and metrics of enqueueing and of runs, by the conventions for messaging.

    instrument(jobs)

It needs the API only. What is recorded, and where it goes, is decided by the SDK that the program sets up.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from jobmill._version import __version__
from jobmill.errors import InvalidValue, MissingExtra
from jobmill.handlers.observers import add_headers, waited_ms

try:
    from opentelemetry import context as current
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise MissingExtra("jobmill.otel needs opentelemetry-api: pip install 'jobmill[otel]'") from None

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.job import Job
    from jobmill.handlers.context import Context
    from jobmill.handlers.draft import Draft
    from jobmill.handlers.enqueued import Enqueued
    from jobmill.handlers.observers import RunEnd

#: The version of the conventions. Those for messaging are still in development.
SEMCONV = "1.44.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV}"
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

#: link: a run is a trace of its own, with a link to the span that enqueued its job. producer: it belongs to that trace.
Parent: TypeAlias = Literal["link", "producer"]

_SERVER = re.compile(r"\w[\w+.-]*://(?:[^/@]*@)?(\[[^]]+\]|[^:/,?]+)(?::(\d+))?")


def instrument(
    *clients: Client,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    parent: Parent = "link",
    create_spans: bool = False,
    body_size: bool = False,
    tenant: bool = False,
) -> None:
    """Trace the jobs of these clients; call it once for each client.

    `parent` says how a run belongs to the span that enqueued its job. With `create_spans`, each job of an
    `enqueue_many` has a span of its own. `body_size` and `tenant` add these attributes.
    """
    if not clients:
        raise InvalidValue("clients", "one client or several", clients, "for example instrument(jobs)")
    if parent not in get_args(Parent):
        raise InvalidValue("parent", "one of " + ", ".join(get_args(Parent)), parent)
    tracer = trace.get_tracer("jobmill", __version__, tracer_provider, SCHEMA_URL)
    meter = metrics.get_meter("jobmill", __version__, meter_provider, SCHEMA_URL)
    for jobs in clients:
        traced = _Traced(jobs, tracer, meter)
        traced.in_trace_of_producer = parent == "producer"
        traced.create_spans = create_spans
        traced.body_size, traced.tenant = body_size, tenant
        jobs.observe("run")(traced.run)
        jobs.observe("enqueue")(traced.enqueue)


class _Traced:
    """The observers of one client."""

    in_trace_of_producer = create_spans = body_size = tenant = False

    def __init__(self, jobs: Client, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._system: dict[str, Any] = {"messaging.system": "jobmill"}
        if server := _SERVER.match(jobs.store.address):
            self._system["server.address"] = server[1]
            if server[2]:
                self._system["server.port"] = int(server[2])
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._call_time, self._run_time = (
            meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=BUCKETS_S)
            for name in ("messaging.client.operation.duration", "messaging.process.duration")
        )

    def _labels(self, operation: str, type: str, queue: str | None) -> dict[str, Any]:
        """What spans and metrics have in common."""
        labels = self._system | {"messaging.operation.name": operation, "messaging.operation.type": type}
        return labels if queue is None else labels | {"messaging.destination.name": queue}

    # ------------------------------------------------------------------------------------------------ runs

    def run(self, context: Context) -> Generator[None, RunEnd, None]:
        """A span around a run. It never belongs to the trace of the program that started the worker."""
        job, began = context.job, time.perf_counter()
        labels = self._labels("process", "process", job.queue)
        self._consumed.add(1, labels)
        sender = propagate.extract(job.headers, current.Context())
        created = trace.get_current_span(sender).get_span_context()
        span = self._tracer.start_span(
            f"process {job.queue}",
            context=sender if self.in_trace_of_producer else current.Context(),
            kind=SpanKind.CONSUMER,
            attributes=labels | self._attributes(job),
            links=[Link(created)] if created.is_valid else [],
        )
        if (own := span.get_span_context()).is_valid:
            context.trace_id = trace.format_trace_id(own.trace_id)
        token = current.attach(trace.set_span_in_context(span, sender))
        end = yield
        current.detach(token)
        span.set_attribute("messaging.jobmill.outcome", end.outcome)
        if end.outcome == "errored":
            labels["error.type"] = end.error_type or "_OTHER"
            _set_error(span, labels["error.type"], str(end.error), end.traceback)
        self._run_time.record(time.perf_counter() - began, labels)
        span.end()

    def _attributes(self, job: Job) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "messaging.message.id": job.id,
            "messaging.client.id": job.worker or "",
            "messaging.jobmill.job.name": job.name,
            "messaging.jobmill.job.attempt": job.attempt,
            "messaging.jobmill.job.fence": job.claims,
            "messaging.jobmill.job.priority": job.priority,
            "messaging.jobmill.wait_ms": waited_ms(job),
        }
        if self.body_size:
            attributes["messaging.message.body.size"] = len(job.payload_json)
        if self.tenant and job.tenant is not None:
            attributes["messaging.jobmill.tenant"] = job.tenant
        return attributes

    # ------------------------------------------------------------------------------------------------ enqueueing

    def enqueue(self, drafts: list[Draft[Any]]) -> Generator[None, list[Enqueued[Any]], None]:
        """A span around a call that enqueues. Its context, or that of the span of each job, goes into the headers."""
        began = time.perf_counter()
        queues = Counter(draft.options.queue for draft in drafts)
        queue = next(iter(queues)) if len(queues) == 1 else None
        labels = self._labels("enqueue", "send", queue)
        created = [self._create(drafts, at) for at in range(len(drafts))] if self.create_spans else []
        span = self._tracer.start_span(
            "send" if queue is None else f"send {queue}",
            kind=SpanKind.CLIENT if created else SpanKind.PRODUCER,
            attributes=labels | self._batch(drafts),
            links=[Link(one.get_span_context()) for one in created],
        )
        token = current.attach(trace.set_span_in_context(span))
        if not created:
            add_headers(drafts, _carrier())
        try:
            enqueued = yield
            if len(enqueued) == 1:
                span.set_attribute("messaging.message.id", enqueued[0].id)
            for one, result in zip(created, enqueued, strict=False):
                one.set_attribute("messaging.message.id", result.id)
        except BaseException as error:
            labels["error.type"] = type(error).__qualname__
            _set_error(span, labels["error.type"], str(error), None)
            raise
        finally:
            current.detach(token)
            for one in (*created, span):
                one.end()
            failed = {key: value for key, value in labels.items() if key == "error.type"}
            for name, count in queues.items():
                self._sent.add(count, self._labels("enqueue", "send", name) | failed)
            self._call_time.record(time.perf_counter() - began, labels)

    def _batch(self, drafts: list[Draft[Any]]) -> dict[str, Any]:
        names = {draft.name for draft in drafts}
        attributes: dict[str, Any] = {}
        if len(drafts) != 1:
            attributes["messaging.batch.message_count"] = len(drafts)
        if len(names) == 1:
            attributes["messaging.jobmill.job.name"] = names.pop()
        if self.body_size:
            attributes["messaging.message.body.size"] = sum(len(draft.payload_json) for draft in drafts)
        return attributes

    def _create(self, drafts: list[Draft[Any]], at: int) -> Span:
        """Start the span of one job, and put its context into the headers of the job."""
        draft = drafts[at]
        queue = draft.options.queue
        attributes = self._labels("create", "create", queue) | {"messaging.jobmill.job.name": draft.name}
        span = self._tracer.start_span(f"create {queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        one = [draft]
        add_headers(one, _carrier(trace.set_span_in_context(span)))
        drafts[at] = one[0]
        return span


def _carrier(context: current.Context | None = None) -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return carrier


def _set_error(span: Span, type: str, message: str, traceback: str | None) -> None:
    """Mark a span as failed. The exception may be one of another process, so there is only its text."""
    span.set_status(Status(StatusCode.ERROR, message))
    span.set_attribute("error.type", type)
    event = {"exception.type": type, "exception.message": message}
    span.add_event("exception", event if traceback is None else event | {"exception.stacktrace": traceback})
