"""The door for code without an event loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client, Event, JobmillError, LaneRule, LaneSettings
from jobmill.client.lane import LaneHandle
from jobmill.client.queue import Queue
from jobmill.client.sync import Sync, SyncLane, SyncQueue
from jobmill.handlers.handler import Handler
from jobmill.runtime import tasks
from jobmill.store import Store


@pytest.fixture
def jobs(store: Store) -> Iterator[Client]:
    client = jobmill.connect(store=store)
    yield client
    client.sync.close()


@pytest.fixture
def add(jobs: Client) -> Handler[..., Any]:
    @jobs.handler()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    return add


def doors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jobmill-sync"]


def test_plain_code_runs_calls_to_their_end(jobs: Client, add: Handler[..., Any]) -> None:
    enqueued = jobs.sync(add.enqueue(1))
    assert enqueued.created
    assert jobs.sync(jobs.get(enqueued.id)).payload == {"a": 1}
    assert jobs.sync.tick().succeeded == 1
    assert jobs.sync(enqueued.result(timeout=0)) == 3
    assert jobs.sync(jobs.queue("default").pause()).paused


def test_methods_of_the_client_are_there_by_name(jobs: Client, add: Handler[..., Any]) -> None:
    enqueued = jobs.sync.enqueue("add", {"a": 1}, id="mine", delay="1h")
    assert jobs.sync.enqueue_many([add.draft(2)])[0].created
    assert jobs.sync.get("mine").id == enqueued.id
    assert len(jobs.sync.find(limit=1).jobs) == 1
    assert jobs.sync.cancel("mine").ids == ["mine"]
    assert jobs.sync.queue("mail").pause().paused
    assert jobs.sync.queue("mail").settings().paused


def test_lanes_without_an_event_loop(jobs: Client, add: Handler[..., Any]) -> None:
    queue = jobs.sync.queue("default")
    assert queue.lanes(running=1).lanes == LaneRule(running=1)
    jobs.sync.enqueue_many([add.options(lane="acme").draft(n) for n in range(5)])
    lane = queue.lane("acme", running=3)
    assert repr(lane) == "<sync methods of <lane 'acme' of queue 'default'>>"
    assert (lane.queue, lane.name) == ("default", "acme")
    assert queue.lane("acme").settings() == LaneSettings(running=3), "limits that are given are changed at once"
    assert lane.settings() == LaneSettings(running=3)
    assert jobs.sync.tick().succeeded == 3
    assert queue.lane("acme").pause(note="down").paused
    assert [one.settings.paused for one in queue.list_lanes()] == [True]
    assert jobs.sync.tick().claimed == 0
    assert not queue.lane("acme").resume().paused
    assert jobs.sync.tick().succeeded == 2


def test_what_is_iterated_over_is_iterated(jobs: Client, add: Handler[..., Any]) -> None:
    jobs.sync.enqueue_many([add.draft(n) for n in range(5)])
    assert sorted(job.payload["a"] for job in jobs.sync.find_all()) == [0, 1, 2, 3, 4]
    for job in jobs.sync.find_all():
        assert job.name == "add"
        break
    jobs.sync(jobs.queue("default").feed())
    jobs.sync.enqueue("add", {"a": 1})
    events: list[Event] = list(jobs.sync.events("default", follow=False))
    assert [event.type for event in events] == ["enqueued"]


def test_errors_come_out_as_they_are(jobs: Client, add: Handler[..., Any]) -> None:
    with pytest.raises(jobmill.JobNotFound):
        jobs.sync.get("nope")
    with pytest.raises(jobmill.InvalidValue):
        jobs.sync.enqueue("add", {"a": "x"})
    with pytest.raises(jobmill.ResultTimeout):
        jobs.sync(jobs.sync(add.enqueue(1)).result(timeout=0))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        jobs.sync.nope()  # type: ignore[attr-defined]


def test_every_async_method_of_a_client_and_a_queue_has_a_sync_one() -> None:
    for kind, sync in ((Client, Sync), (Queue, SyncQueue), (LaneHandle, SyncLane)):
        methods = {
            name
            for name, method in inspect.getmembers(kind)
            if not name.startswith("_") and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
        }
        # A worker needs a loop of its own: `jobs.run()`. Frameworks await a dependency.
        assert methods - {"run_worker", "dependency"} <= {name for name, _ in inspect.getmembers(sync)}


async def test_code_in_a_running_loop_may_use_it_and_blocks_that_loop(jobs: Client, add: Handler[..., Any]) -> None:
    passed: list[str] = []
    asyncio.get_running_loop().call_soon(passed.append, "the loop went on")
    enqueued = jobs.sync(add.enqueue(1))
    assert jobs.sync.get(enqueued.id).state == "waiting"
    assert passed == []
    await asyncio.sleep(0)
    assert passed == ["the loop went on"]
    assert (await jobs.get(enqueued.id)).id == enqueued.id, "both doors lead to one store"


def test_several_threads_share_one_door(jobs: Client, add: Handler[..., Any]) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(jobs.sync(add.enqueue(1)).id)) for _ in range(8)]
    before = len(doors())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8
    assert len(doors()) == before + 1
    assert jobs.sync is jobs.sync


@pytest.mark.parametrize("by_name", [True, False])
def test_code_that_it_runs_cannot_use_it_and_is_told_so(jobs: Client, by_name: bool) -> None:
    @jobs.handler(max_attempts=1)
    async def inside() -> None:
        if by_name:
            jobs.sync.count()
        else:
            jobs.sync(jobs.count())

    enqueued = jobs.sync(inside.enqueue())
    jobs.sync.tick()
    error = jobs.sync(enqueued.job()).error
    assert error == ("JobmillError: code that jobs.sync runs cannot call jobs.sync again: await the method")


def test_a_sync_handler_may_use_it(jobs: Client, add: Handler[..., Any]) -> None:
    @jobs.handler()
    def enqueues_more() -> str:
        return jobs.sync(add.enqueue(5)).id

    enqueued = jobs.sync(enqueues_more.enqueue())
    jobs.sync.tick()
    assert jobs.sync.get(jobs.sync(enqueued.result(timeout=0))).payload == {"a": 5}


def test_closing_ends_the_thread_and_the_next_call_starts_another(jobs: Client, add: Handler[..., Any]) -> None:
    before = len(doors())
    enqueued = jobs.sync(add.enqueue(1))
    assert len(doors()) == before + 1
    jobs.sync.close()
    assert len(doors()) == before
    assert jobs.sync.get(enqueued.id).id == enqueued.id
    jobs.sync.close()
    jobs.sync.close()


def calling(jobs: Client, call: Callable[[], Awaitable[None]], raised: list[BaseException]) -> threading.Thread:
    """Make a call in another thread, and note what it raises."""

    def run() -> None:
        try:
            jobs.sync(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_closing_ends_the_calls_of_other_threads(jobs: Client, add: Handler[..., Any]) -> None:
    enqueued = jobs.sync(add.enqueue(1))
    waiting = threading.Event()
    raised: list[BaseException] = []

    async def waits() -> None:
        waiting.set()
        await enqueued.result()

    thread = calling(jobs, waits, raised)
    assert waiting.wait(5)
    jobs.sync.close()
    thread.join(5)
    # That the door was closed, or, where a call was under way just then, the store.
    assert [isinstance(error, JobmillError) for error in raised] == [True]


def test_closing_ends_a_call_that_loses_a_cancellation(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `wait_for` of Python 3.11 does, with which pymongo sends each command."""
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    waiting = threading.Event()
    raised: list[BaseException] = []

    async def waits() -> None:
        with suppress(asyncio.CancelledError):
            waiting.set()
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    thread = calling(jobs, waits, raised)
    assert waiting.wait(5)
    closer = threading.Thread(target=jobs.sync.close, daemon=True)
    closer.start()
    for one in (closer, thread):
        one.join(5)
        assert not one.is_alive()
    assert [type(error) for error in raised] == [JobmillError]


# The connections of the loop that is gone stay open, as after a fork, until they are collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_door_whose_thread_is_gone_as_after_a_fork_is_opened_anew(jobs: Client, add: Handler[..., Any]) -> None:
    before = doors()
    enqueued = jobs.sync(add.enqueue(1))
    loop = jobs.sync(running_loop())
    (thread,) = [one for one in doors() if one not in before]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert jobs.sync.get(enqueued.id).id == enqueued.id
    del loop, thread, before
    gc.collect()  # here, and not in a test that fails because of it


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_within_closes_its_call_when_the_store_cannot_be_opened(tmp_path: Path) -> None:
    jobs = jobmill.connect(f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}")
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(JobmillError, match="missing"):
        jobs.sync.enqueue("send", within=connection)
    gc.collect()  # a coroutine that nobody has awaited warns when it is collected, and pytest fails
    jobs.sync.close()


async def test_within_in_an_event_loop_is_refused(tmp_path: Path) -> None:
    jobs = jobmill.connect(f"sqlite:///{tmp_path / 'jobs.db'}")
    with (
        closing(sqlite3.connect(tmp_path / "jobs.db")) as connection,
        pytest.raises(JobmillError, match="await the method of jobs itself"),
    ):
        jobs.sync.enqueue("send", within=connection)
    jobs.sync.close()
