"""What jobs carry beside their payload, and what is kept of attempts and pauses, on both sides."""

from __future__ import annotations

import json

import pytest

from jobmill.core.values import Pause, QueueChange
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}


async def test_node_reads_the_context_of_a_trace(scene: Scene) -> None:
    headers = {**TRACE, "tenant": "acme"}
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE, headers=headers)
    opts = await scene.node.ask("opts", queue=QUEUE, job=enqueued.id)
    assert json.loads(opts["telemetry"]["metadata"]) == TRACE
    assert (await enqueued.job()).headers == headers
    delayed = await scene.jobs.enqueue("send", {}, queue=QUEUE, headers=TRACE, delay=60, unique_key="k")
    opts = await scene.node.ask("opts", queue=QUEUE, job=delayed.id)
    assert json.loads(opts["telemetry"]["metadata"]) == TRACE
    assert (await delayed.job()).options.headers == TRACE


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        ({"metadata": json.dumps(TRACE)}, TRACE),
        ({"metadata": json.dumps(TRACE), "omitContext": True}, {}),
        ({"metadata": "{garbage"}, {}),
        ({"metadata": '["x"]'}, {}),
        ({"metadata": '{"a": 1, "b": "x"}'}, {"b": "x"}),
    ],
)
async def test_python_reads_the_context_of_a_trace(
    scene: Scene, telemetry: dict[str, object], expected: dict[str, str]
) -> None:
    id = await scene.add(telemetry=telemetry)
    assert (await scene.jobs.get(f"{QUEUE}:{id}")).headers == expected


async def test_attempts_of_both_sides(scene: Scene) -> None:
    enqueued = await scene.jobs.enqueue("broken", {}, queue=QUEUE, max_attempts=4, backoff=0.5)
    worker = await scene.ready_worker()

    async def has_errored() -> bool:
        return (await enqueued.job()).errors >= 1

    await until(has_errored, 30)
    worker.kill()
    worker.wait()
    ours = (await enqueued.job()).attempts
    await scene.node.ask("work", queue=QUEUE)
    await scene.ended(enqueued.id, state="failed")
    job = await enqueued.job()
    assert job.attempts[: len(ours)] == ours
    assert ours[0].traceback is not None
    assert "Traceback" in ours[0].traceback
    theirs = job.attempts[len(ours) :]
    assert len(job.attempts) == 4
    assert all("always broken" in str(one.traceback) and one.error_type is None for one in theirs)


async def test_a_pause_of_node_has_no_reason(scene: Scene) -> None:
    queue = scene.jobs.queue(QUEUE)
    paused = await queue.pause(who="ada", note="later", until="1h")
    assert paused.pause is not None
    assert paused.pause.who == "ada"
    assert (await scene.node.ask("meta", queue=QUEUE))["paused"] is True
    await scene.node.ask("resume", queue=QUEUE)
    assert (await scene.jobs.store.settings([QUEUE]))[QUEUE].pause is None
    await scene.jobs.enqueue("send", {}, queue=QUEUE)
    await scene.node.ask("pause", queue=QUEUE)
    settings = (await scene.jobs.store.settings([QUEUE]))[QUEUE]
    assert (settings.paused, settings.pause) == (True, None)


async def test_node_works_again_when_a_pause_is_over(scene: Scene) -> None:
    await scene.jobs.store.open()
    until_ms = scene.jobs.store.now() + 2_000
    pause = QueueChange(paused=True, pause=Pause(who="ada", until_ms=until_ms))
    await scene.jobs.store.configure(QUEUE, pause)
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE)
    await scene.node.ask("work", queue=QUEUE)
    await until(lambda: scene.jobs.store.now() >= until_ms)
    assert (await enqueued.job()).state == "waiting", "only Jobmill knows that the pause is over"
    await scene.jobs.store.purge()
    assert await enqueued.result(timeout=20) == f"Node sent {enqueued.id}"
    assert (await scene.node.ask("meta", queue=QUEUE))["paused"] is False
