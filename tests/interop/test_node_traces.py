"""A trace runs through Node and Python: bullmq-otel on one side, jobmill.otel on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jobmill.otel import Parent, instrument
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, node_place
from tests.kit.node import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

#: Where Python puts the jobs that Node runs.
BACK = "back"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Traced:
    """Both sides, and the spans of both. The ids of a span are those that Node tells: hexadecimal."""

    def __init__(self, scene: Scene, node: NodeProcess) -> None:
        self.jobs = scene.jobs
        self.node = node
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        #: The traces that the runs of `send` saw.
        self.seen: list[str] = []

        @self.jobs.handler(queue=QUEUE)
        async def send() -> None:
            self.seen.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")

    def instrument(self, parent: Parent = "producer") -> None:
        instrument(self.jobs, tracer_provider=self._provider, parent=parent)

    async def add(self, **opts: Any) -> str:
        """A job that Node adds, by its id here."""
        return f"{QUEUE}:{await self.node.ask('add', queue=QUEUE, name='send', opts=opts)}"

    async def run(self, job: str) -> ReadableSpan:
        """The span of a job of Node that a worker of ours runs."""
        async with Worker(self.jobs, queues=[QUEUE]):
            await until(lambda: self.runs(job), 20)
        (span,) = self.runs(job)
        assert (await self.jobs.get(job)).state == "succeeded"
        return span

    def runs(self, job: str | None = None) -> list[ReadableSpan]:
        runs = [span for span in self._exporter.get_finished_spans() if span.name == f"process {QUEUE}"]
        return [span for span in runs if job in (None, (span.attributes or {})["messaging.message.id"])]

    async def ours(self, name: str) -> tuple[str, str, str | None]:
        """The trace, the id and the parent of our only span of this name."""
        (span,) = await until(lambda: [one for one in self._exporter.get_finished_spans() if one.name == name])
        return ids(span)

    async def theirs(self, name: str, job: str | None = None) -> tuple[str, str, str | None]:
        """The same of the first span of Node that has this name, and is about this job."""
        span = await self.node.event("span", lambda one: one["name"] == name and job in (None, one.get("job")))
        return span["trace"], span["span"], span["parent"]


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    assert span.context is not None
    parent = None if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", parent


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links]


@pytest.fixture
async def traced(scene: Scene) -> AsyncIterator[Traced]:
    async with NodeProcess(scene.packages, "traced.mjs", *node_place(scene.url)) as node:
        yield Traced(scene, node)


async def test_a_trace_that_begins_in_node_continues_in_python_and_back(traced: Traced) -> None:
    traced.instrument()

    @traced.jobs.handler(name="relay", queue=QUEUE)
    async def relay() -> None:
        await traced.jobs.enqueue("answer", {}, queue=BACK)

    await traced.node.ask("work", queue=BACK)
    async with Worker(traced.jobs):
        await traced.node.ask("add", queue=QUEUE, name="relay")
        begin, request, _ = await traced.theirs("request")
        trace, added, parent = await traced.theirs(f"add {QUEUE}.relay")
        assert (trace, parent) == (begin, request)
        trace, run, parent = await traced.ours(f"process {QUEUE}")
        assert (trace, parent) == (begin, added)
        trace, sent, parent = await traced.ours(f"send {BACK}")
        assert (trace, parent) == (begin, run)
        trace, _, parent = await traced.theirs(f"process {BACK}")
        assert (trace, parent) == (begin, sent)


async def test_a_trace_that_begins_in_python_continues_in_node(traced: Traced) -> None:
    traced.instrument()
    await traced.node.ask("work", queue=BACK)
    await traced.jobs.enqueue("answer", {}, queue=BACK, delay=0.1, unique_key="k")
    begin, sent, parent = await traced.ours(f"send {BACK}")
    assert parent is None
    trace, _, parent = await traced.theirs(f"process {BACK}")
    assert (trace, parent) == (begin, sent)


@pytest.mark.parametrize("parent", ["link", "producer"])
async def test_how_a_run_belongs_to_the_trace_of_node(traced: Traced, parent: Parent) -> None:
    traced.instrument(parent)
    run = await traced.run(await traced.add())
    begin, added, _ = await traced.theirs(f"add {QUEUE}.send")
    assert links(run) == [(begin, added)]
    own, _, above = ids(run)
    if parent == "producer":
        assert (own, above) == (begin, added)
    else:
        assert own != begin
        assert above is None
    assert traced.seen == [own], "what the handler does belongs to the run"


async def test_a_retry_on_the_other_side_stays_in_the_trace(traced: Traced) -> None:
    traced.instrument()
    enqueued = await traced.jobs.enqueue("flaky", {}, queue=QUEUE, max_attempts=100, backoff=0.2)

    @traced.jobs.handler(queue=QUEUE)
    async def flaky() -> int:
        raise RuntimeError("fails in Python")

    async def has_errored() -> bool:
        return (await enqueued.job()).errors >= 1

    async with Worker(traced.jobs, queues=[QUEUE]):
        await until(has_errored, 20)
    await traced.node.ask("work", queue=QUEUE)
    trace, _, parent = await traced.theirs(f"process {QUEUE}", enqueued.id)
    assert (trace, parent) == (await traced.ours(f"send {QUEUE}"))[:2]
    assert await enqueued.result(timeout=20) >= 1


@pytest.mark.parametrize("given", [{}, {"metadata": f'{{"traceparent":"{TRACEPARENT}"}}'}])
async def test_a_job_that_says_to_omit_the_context(traced: Traced, given: dict[str, str]) -> None:
    traced.instrument()
    run = await traced.run(await traced.add(telemetry={**given, "omitContext": True}))
    begin, _, _ = await traced.theirs(f"add {QUEUE}.send")
    assert (run.links, run.parent) == ((), None)
    assert ids(run)[0] not in (begin, TRACEPARENT.split("-")[1])


@pytest.mark.parametrize(
    "metadata",
    ["{garbage", '["x"]', '{"traceparent": 5}', '{"traceparent": "00-x-y-01"}', "null", 7, {"traceparent": "x"}],
)
async def test_a_job_with_garbage_as_context_runs_as_usual(scene: Scene, traced: Traced, metadata: object) -> None:
    traced.instrument()
    run = await traced.run(f"{QUEUE}:{await scene.add(telemetry={'metadata': metadata})}")
    assert (run.links, run.parent) == ((), None)
    assert traced.seen == [ids(run)[0]]


@pytest.mark.parametrize("omit", [False, True])
async def test_each_run_of_a_scheduler_is_a_trace_with_a_link_to_the_call(traced: Traced, omit: bool) -> None:
    """Node gives all runs the context of the call that made the scheduler, unless it says to omit it."""
    traced.instrument("link")
    template = {"name": "send", "data": {}, "opts": {"telemetry": {"omitContext": True}} if omit else {}}
    await traced.node.ask("schedule", queue=QUEUE, repeat={"every": 300}, template=template)
    begin, added, _ = await traced.theirs(f"add {QUEUE}.send")
    async with Worker(traced.jobs, queues=[QUEUE]):
        runs = await until(lambda: (found := traced.runs())[1:] and found, 20)
    assert all(links(run) == ([] if omit else [(begin, added)]) for run in runs)
    assert len({ids(run)[0] for run in runs} | {begin}) == len(runs) + 1
