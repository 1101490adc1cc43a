"""bull-board on our queue: it shows our jobs and workers, and its buttons work on them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

import jobmill
from tests.helpers import until
from tests.interop.board import Board, board_at
from tests.interop.scene import QUEUE, Scene, node_place

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]


@pytest.fixture
async def board(scene: Scene) -> AsyncIterator[Board]:
    async with board_at(scene.packages, *node_place(scene.url), QUEUE) as made:
        yield made


async def test_it_shows_our_jobs(scene: Scene, board: Board) -> None:
    await scene.ready_worker("--name", "py-1")
    done = await scene.jobs.enqueue("send", {"to": "log"}, queue=QUEUE)
    await done.result(timeout=20)
    bad = await scene.jobs.enqueue("broken", {}, queue=QUEUE, max_attempts=1)
    with pytest.raises(jobmill.JobFailed):
        await bad.result(timeout=20)
    later = await scene.jobs.enqueue("send", {"to": "ada"}, queue=QUEUE, delay=600, priority=3)
    assert await board.counts() == {"completed": 1, "failed": 1, "delayed": 1}

    (shown,) = (await board.queue("completed"))["jobs"]
    assert (shown["id"], shown["name"], shown["data"]) == (done.id, "send", {"to": "log"})
    assert (shown["returnValue"], shown["progress"], shown["attempts"]) == (f"Python sent {done.id}", 50, 1)
    assert await board.ask(f"/queues/{QUEUE}/{done.id}/logs") == ["half way"]
    (shown,) = (await board.queue("failed"))["jobs"]
    assert (shown["id"], shown["failedReason"], shown["isFailed"]) == (bad.id, "always broken", True)
    assert "Traceback" in shown["stacktrace"][0]
    (shown,) = (await board.queue("delayed"))["jobs"]
    assert (shown["id"], shown["delay"], shown["opts"]["priority"]) == (later.id, 600_000, 3)


async def test_it_lists_our_workers(scene: Scene, board: Board) -> None:
    await scene.ready_worker("--name", "py-1")
    (worker,) = (await board.ask(f"/queues/{QUEUE}/workers"))["workers"]
    assert "py-1" in json.dumps(worker)


async def test_it_shows_our_recurring_jobs(scene: Scene, board: Board) -> None:
    await scene.jobs.enqueue(
        "send", {"to": "ada"}, queue=QUEUE, cron="0 3 * * *", timezone="Europe/Berlin", key="nightly"
    )
    shown = json.dumps(await board.ask("/job-schedulers"))
    assert "send nightly" in shown
    assert "0 3 * * *" in shown
    await board.ask(f"/queues/{QUEUE}/job-schedulers/{quote('send nightly')}/remove", "PUT")
    assert await board.counts() == {}
    assert (await scene.jobs.find(queue=QUEUE)).jobs == []


async def test_its_retry_button(scene: Scene, board: Board) -> None:
    enqueued = await scene.jobs.enqueue("broken", {}, queue=QUEUE, max_attempts=1)
    await scene.ready_worker()
    with pytest.raises(jobmill.JobFailed):
        await enqueued.result(timeout=20)
    await board.press("retry", enqueued.id)
    await until(lambda: len(scene.notes()) == 2)
    await scene.ended(enqueued.id, state="failed")


async def test_its_promote_button(scene: Scene, board: Board) -> None:
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE, delay=600)
    await board.press("promote", enqueued.id)
    assert await board.counts() == {"waiting": 1}
    await scene.ready_worker()
    await enqueued.result(timeout=20)


async def test_its_pause_and_resume_buttons(scene: Scene, board: Board) -> None:
    await scene.ready_worker()
    await board.press("pause")
    assert (await scene.jobs.queue(QUEUE).settings()).paused
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE)
    assert (await board.queue())["isPaused"]
    await board.press("resume")
    await enqueued.result(timeout=20)
    assert not (await board.queue())["isPaused"]


async def test_its_remove_button(scene: Scene, board: Board) -> None:
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="once")
    await board.press("clean", enqueued.id)
    with pytest.raises(jobmill.JobNotFound):
        await enqueued.job()
    again = await scene.jobs.enqueue("send", {}, queue=QUEUE, unique_key="once")
    assert again.created
