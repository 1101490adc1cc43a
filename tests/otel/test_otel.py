"""OpenTelemetry: what the real SDK collects from a real worker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as current
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

import jobmill
from jobmill import Client, InvalidValue
from jobmill.otel import _SERVER, BUCKETS_S, instrument
from jobmill.worker.stderr_log import JsonFormatter
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until
from tests.worker import isolated_handlers

ROOT = Path(__file__).parents[2]


class Collected:
    """An SDK of its own, and what it has collected."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.metrics = MeterProvider([self._reader])
        self.tracer = self.traces.get_tracer("tests")

    def instrument(self, *clients: Client, **options: Any) -> None:
        instrument(*clients, tracer_provider=self.traces, meter_provider=self.metrics, **options)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self._exporter.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        (found,) = [
            metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return list(found.data.data_points)


@pytest.fixture
def collected() -> Collected:
    return Collected()


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def context_of(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def failed(enqueued: jobmill.Enqueued[Any]) -> None:
    with pytest.raises(jobmill.JobFailed):
        await enqueued.result(timeout=20)


# ---------------------------------------------------------------------------------------------------- one job


@pytest.mark.parametrize("parent", ["link", "producer"])
async def test_the_span_of_a_run_has_a_link_to_the_one_that_enqueued(
    jobs: Client, collected: Collected, parent: str
) -> None:
    collected.instrument(jobs, parent=parent, body_size=True, tenant=True)

    @jobs.handler(queue="post", priority=3)
    async def mail(to: str) -> None: ...

    with collected.tracer.start_as_current_span("request") as request:
        enqueued = await mail.options(tenant="acme").enqueue(to="ada")
    async with Worker(jobs, name="press-1"):
        await enqueued.result(timeout=10)
        await until(lambda: collected.named("process post"))
    (send,), (process,) = collected.named("send post"), collected.named("process post")
    assert send.parent == request.get_span_context()
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [(link.context.trace_id, link.context.span_id) for link in process.links] == [
        (context_of(send).trace_id, context_of(send).span_id)
    ]
    if parent == "producer":
        assert process.parent is not None
        assert process.parent.span_id == context_of(send).span_id
    else:
        assert process.parent is None
    assert (context_of(process).trace_id == context_of(send).trace_id) == (parent == "producer")
    assert process.status.status_code == StatusCode.UNSET
    assert 0 <= attributes(process)["messaging.jobmill.wait_ms"] < 10_000
    size = len('{"to":"ada"}')
    assert attributes(send) == {
        "messaging.system": "jobmill",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "post",
        "messaging.message.id": enqueued.id,
        "messaging.message.body.size": size,
        "messaging.jobmill.job.name": "mail",
    }
    assert {key: value for key, value in attributes(process).items() if not key.endswith("wait_ms")} == {
        "messaging.system": "jobmill",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "post",
        "messaging.message.id": enqueued.id,
        "messaging.message.body.size": size,
        "messaging.client.id": "press-1",
        "messaging.jobmill.job.name": "mail",
        "messaging.jobmill.job.attempt": 1,
        "messaging.jobmill.job.fence": 1,
        "messaging.jobmill.job.priority": 3,
        "messaging.jobmill.outcome": "succeeded",
        "messaging.jobmill.tenant": "acme",
    }
    scope = process.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version, scope.schema_url) == (
        "jobmill",
        jobmill.__version__,
        "https://opentelemetry.io/schemas/1.44.0",
    )
    assert collected.names == ["process post", "request", "send post"]


async def test_a_job_without_headers(jobs: Client, collected: Collected) -> None:
    enqueued = await jobs.enqueue("mail", {})
    collected.instrument(jobs)

    @jobs.handler
    async def mail() -> None: ...

    async with Worker(jobs):
        await enqueued.result(timeout=10)
        (process,) = await until(lambda: collected.named("process default"))
    assert (process.parent, list(process.links)) == (None, [])


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_spans_of_the_handler_are_below_the_run(jobs: Client, collected: Collected, kind: str) -> None:
    collected.instrument(jobs)

    def work() -> None:
        with collected.tracer.start_as_current_span(f"query {baggage.get_baggage('customer')}"):
            pass

    async def work_async() -> None:
        await asyncio.sleep(0)
        work()

    handler: jobmill.Handler[[], None] = jobs.handler(name="work")(work_async if kind == "async" else work)
    token = current.attach(baggage.set_baggage("customer", "acme"))
    enqueued = await handler.enqueue()
    current.detach(token)
    # Runs are not part of the trace of the program that started their worker.
    with collected.tracer.start_as_current_span("program") as program:
        async with Worker(jobs):
            await enqueued.result(timeout=10)
            (process,) = await until(lambda: collected.named("process default"))
        assert trace.get_current_span() is program
    (query,) = collected.named("query acme")
    assert query.parent is not None
    assert query.parent.span_id == context_of(process).span_id
    assert context_of(process).trace_id != program.get_span_context().trace_id


# ---------------------------------------------------------------------------------------------------- errors


async def test_each_attempt_has_a_span_and_an_error_is_on_it(jobs: Client, collected: Collected) -> None:
    collected.instrument(jobs)

    @jobs.handler(max_attempts=2, backoff="1ms")
    def charge() -> None:
        raise ValueError("no money")

    async with Worker(jobs):
        await failed(await charge.enqueue())
    spans = collected.named("process default")
    assert [attributes(span)["messaging.jobmill.job.attempt"] for span in spans] == [1, 2]
    assert len({context_of(span).trace_id for span in spans}) == 2
    for span in spans:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no money")
        assert attributes(span)["error.type"] == "ValueError"
        assert attributes(span)["messaging.jobmill.outcome"] == "errored"
        (event,) = span.events
        assert event.name == "exception"
        assert "in charge" in str(dict(event.attributes or {})["exception.stacktrace"])


async def test_an_isolated_process(collected: Collected) -> None:
    jobs = isolated_handlers.jobs
    collected.instrument(jobs)
    try:
        async with Worker(jobs):
            await failed(await isolated_handlers.raises.options(max_attempts=1).enqueue("from a child"))
            logged = await isolated_handlers.logs_lines.enqueue()
            await logged.result(timeout=20)
            (line,) = await jobs.logs(logged.id)
    finally:
        jobs.hooks.observers.run.clear()
        jobs.hooks.observers.enqueue.clear()
    span, second = collected.named("process default")
    assert line.text.endswith(f": sent {context_of(second).trace_id:032x}")
    assert attributes(span)["error.type"] == "ValueError"
    assert "in raises" in str(dict(span.events[0].attributes or {})["exception.stacktrace"])


def trace_of(record: logging.LogRecord) -> str | None:
    """The trace in a line as `--log-format json` writes it."""
    trace_id: str | None = json.loads(JsonFormatter().format(record)).get("trace_id")
    return trace_id


@pytest.mark.parametrize("parent", ["link", "producer"])
async def test_lines_of_a_run_carry_its_trace(
    jobs: Client, collected: Collected, caplog: pytest.LogCaptureFixture, parent: str
) -> None:
    caplog.handler.addFilter(jobmill.JobLogFilter())
    seen: list[str | None] = []

    @jobs.handler(max_attempts=2, backoff="1ms")
    async def charge(context: jobmill.Context) -> None:
        seen.append(context.trace_id)
        log.warning("charging")
        raise ValueError("no money")

    log = logging.getLogger("shop")
    async with Worker(jobs):
        await failed(await charge.enqueue())
        collected.instrument(jobs, parent=parent)
    async with Worker(jobs):
        await failed(await charge.enqueue())
    traces = [None, None, *(f"{context_of(span).trace_id:032x}" for span in collected.named("process default"))]
    assert len(traces) == 4
    assert seen == traces
    for logger in ("shop", "jobmill"):
        assert [trace_of(record) for record in caplog.records if record.name == logger] == traces


async def test_lines_without_an_sdk_have_no_trace(jobs: Client, caplog: pytest.LogCaptureFixture) -> None:
    instrument(jobs, tracer_provider=trace.NoOpTracerProvider())

    @jobs.handler(max_attempts=1)
    async def charge() -> None:
        raise ValueError("no money")

    async with Worker(jobs):
        await failed(await charge.enqueue())
    (record,) = caplog.records
    assert "trace_id" not in vars(record)


async def test_a_cancelled_run_ends_its_span(
    jobs: Client, collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    collected.instrument(jobs)
    started = asyncio.Event()

    @jobs.handler
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    async with Worker(jobs, lease="900ms"):
        enqueued = await long.enqueue()
        await started.wait()
        await jobs.cancel(enqueued.id)
        (span,) = await until(lambda: collected.named("process default"))
    assert (attributes(span)["messaging.jobmill.outcome"], span.status.status_code) == ("lost", StatusCode.UNSET)
    (record,) = caplog.records
    assert trace_of(record) == f"{context_of(span).trace_id:032x}", record.getMessage()


async def test_an_enqueue_that_fails(collected: Collected, caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)
    collected.instrument(jobs, create_spans=True)
    store.faults["enqueue"] = jobmill.StoreUnavailable("away")
    with pytest.raises(jobmill.StoreUnavailable):
        await jobs.enqueue("mail")
    (span,) = collected.named("send default")
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "StoreUnavailable")
    assert collected.names == ["create default", "send default"]
    (point,) = collected.points("messaging.client.sent.messages")
    assert point.attributes["error.type"] == "StoreUnavailable"
    assert not caplog.records


# ---------------------------------------------------------------------------------------------------- many jobs


async def test_many_jobs_share_one_span(jobs: Client, collected: Collected) -> None:
    collected.instrument(jobs)
    many = await jobs.enqueue_many([jobs.draft("mail"), jobs.draft("other")])
    await jobs.enqueue_many([jobs.draft("mail"), jobs.draft("mail", queue="post")])
    await jobs.enqueue("mail", every="1h", key="hourly")
    (one_queue, _), (queues,) = collected.named("send default"), collected.named("send")
    assert attributes(one_queue)["messaging.batch.message_count"] == 2
    assert "messaging.destination.name" not in attributes(queues)
    headers = [(await jobs.get(one.id)).headers for one in many]
    expected = f"{context_of(one_queue).span_id:016x}"
    assert [one["traceparent"].split("-")[2] for one in headers] == [expected] * 2
    (recurring,) = [job async for job in jobs.find_all() if job.recurrence is not None]
    assert recurring.headers == {}


async def test_each_of_many_jobs_has_a_span_if_asked_for(jobs: Client, collected: Collected) -> None:
    collected.instrument(jobs, create_spans=True)
    drafts = [jobs.draft("mail"), jobs.draft("mail", headers={"mine": "1"}), jobs.draft("mail", queue="post")]
    many = await jobs.enqueue_many(drafts)
    (send,) = collected.named("send")
    created = [*collected.named("create default"), *collected.named("create post")]
    assert (send.kind, {span.kind for span in created}) == (SpanKind.CLIENT, {SpanKind.PRODUCER})
    assert [link.context.span_id for link in send.links] == [context_of(span).span_id for span in created]
    found = [await jobs.get(one.id) for one in many]
    assert [job.headers["traceparent"].split("-")[2] for job in found] == [
        f"{context_of(span).span_id:016x}" for span in created
    ]
    assert [attributes(span)["messaging.message.id"] for span in created] == [one.id for one in many]
    assert found[1].headers["mine"] == "1"


# ---------------------------------------------------------------------------------------------------- metrics


async def test_metrics(jobs: Client, collected: Collected) -> None:
    collected.instrument(jobs)

    @jobs.handler(max_attempts=1)
    async def charge(fails: bool) -> None:
        if fails:
            raise ValueError

    async with Worker(jobs):
        many = await jobs.enqueue_many([charge.draft(fails=False), charge.draft(fails=True)])
        await many[0].result(timeout=10)
        await failed(many[1])
    common = {"messaging.system": "jobmill", "messaging.destination.name": "default"}
    sent = common | {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    processed = common | {"messaging.operation.name": "process", "messaging.operation.type": "process"}

    def read(name: str, value: Callable[[Any], Any]) -> list[tuple[dict[str, Any], Any]]:
        found = [(dict(point.attributes), value(point)) for point in collected.points(name)]
        return sorted(found, key=lambda one: len(one[0]))

    assert read("messaging.client.sent.messages", lambda point: point.value) == [(sent, 2)]
    assert read("messaging.client.consumed.messages", lambda point: point.value) == [(processed, 2)]
    buckets: Callable[[Any], Any] = lambda point: (point.count, tuple(point.explicit_bounds))  # noqa: E731
    assert read("messaging.client.operation.duration", buckets) == [(sent, (1, BUCKETS_S))]
    assert read("messaging.process.duration", buckets) == [
        (processed, (1, BUCKETS_S)),
        (processed | {"error.type": "ValueError"}, (1, BUCKETS_S)),
    ]


# ---------------------------------------------------------------------------------------------------- setup


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("postgresql://ada:secret@db.example:5433/shop", ("db.example", "5433")),
        ("redis://cache.example/0", ("cache.example", "6379")),
        ("mongodb://a.example:27017,b.example:27018/shop", ("a.example", "27017")),
        ("sqlite:///shop.db", None),
        ("memory://", None),
    ],
)
def test_the_server_of_a_store(url: str, server: tuple[str, str | None] | None) -> None:
    found = _SERVER.match(jobmill.connect(url).store.address)
    assert (None if found is None else found.groups()) == server


def test_wrong_options(jobs: Client) -> None:
    with pytest.raises(InvalidValue, match="clients: expected one client"):
        instrument()
    with pytest.raises(InvalidValue, match="parent: expected one of link, producer"):
        instrument(jobs, parent="child")  # type: ignore[arg-type]


def test_only_this_module_imports_opentelemetry() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # how Python knows that there is no such module
import jobmill.cli, jobmill.client.client, jobmill.testing, jobmill.worker.isolate.child, jobmill.worker.worker
try:
    import jobmill.otel
except jobmill.MissingExtra as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/src"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "jobmill.otel needs opentelemetry-api: pip install 'jobmill[otel]'\n"
