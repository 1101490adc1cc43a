"""The client for code without an event loop: the same methods, run by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import UNSET, UnsetType

from jobmill.client.client import Client
from jobmill.client.lane import LaneHandle, Rate
from jobmill.client.queue import Queue
from jobmill.errors import JobmillError
from jobmill.runtime.tasks import end
from jobmill.stores.common.callers import behind_django

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """An async method as one that returns its result. Type checkers see the same parameters."""

    @functools.wraps(method)
    def run(self: Sync | SyncQueue | SyncLane, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("within") is None:
            return self._sync(method(self._target, *args, **kwargs))
        # Here, because inside an event loop Django's `connection` is another one.
        kwargs["within"] = behind_django(kwargs["within"])
        return self._sync.run_here(method(self._target, *args, **kwargs))

    return run


def _iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """An async generator as an iterator."""

    @functools.wraps(method)
    def run(self: Sync, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items: Any = method(self._target, *args, **kwargs)
        ended: Any = object()
        try:
            while (item := self(anext(items, ended))) is not ended:
                yield item
        finally:
            self(items.aclose())

    return run


class Sync:
    """`jobs.sync.get(id)`; `jobs.sync(send.enqueue(to="ada"))` runs anything else that can be awaited."""

    open = _blocking(Client.open)
    enqueue = _blocking(Client.enqueue)
    enqueue_many = _blocking(Client.enqueue_many)
    enqueue_group = _blocking(Client.enqueue_group)
    flow = _blocking(Client.flow)
    signal = _blocking(Client.signal)
    get = _blocking(Client.get)
    result = _blocking(Client.result)
    find = _blocking(Client.find)
    find_all = _iterating(Client.find_all)
    count = _blocking(Client.count)
    stats = _blocking(Client.stats)
    depths = _blocking(Client.depths)
    workers = _blocking(Client.workers)
    tallies = _blocking(Client.tallies)
    audit_log = _blocking(Client.audit_log)
    explain = _blocking(Client.explain)
    examine = _blocking(Client.examine)
    fsck = _blocking(Client.fsck)
    logs = _blocking(Client.logs)
    queues = _blocking(Client.queues)
    events = _iterating(Client.events)
    publish = _blocking(Client.publish)
    cancel = _blocking(Client.cancel)
    requeue = _blocking(Client.requeue)
    reschedule = _blocking(Client.reschedule)
    reprioritize = _blocking(Client.reprioritize)
    remove = _blocking(Client.remove)
    hold = _blocking(Client.hold)
    release = _blocking(Client.release)
    pin = _blocking(Client.pin)
    release_pin = _blocking(Client.release_pin)
    stop_workers = _blocking(Client.stop_workers)
    mark = _blocking(Client.mark)
    audit = _blocking(Client.audit)
    purge = _blocking(Client.purge)
    tick = _blocking(Client.tick)

    def __init__(self, client: Client) -> None:
        self._target = client
        self._sync = self
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        """The client that it belongs to."""
        return f"<sync methods of {self._target!r}>"

    def queue(self, name: str) -> SyncQueue:
        """One queue: pause, resume, limits, settings, event feed."""
        return SyncQueue(self, self._target.queue(name))

    def close(self) -> None:
        """Close the client and end the thread; the next call starts a new one."""
        self(self._target.close())
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            loop, thread = running
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __call__(self, call: Awaitable[T]) -> T:
        """Run one call to its end and return its result; an event loop of this thread is blocked meanwhile."""
        loop, thread = self._started()
        if thread is threading.current_thread():
            if inspect.iscoroutine(call):
                call.close()
            raise JobmillError("code that jobs.sync runs cannot call jobs.sync again: await the method")
        future = asyncio.run_coroutine_threadsafe(_awaited(call), loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise JobmillError("jobs.sync was closed by another thread before this call had ended") from None
        except BaseException:
            # Ctrl-C ends the wait, and then the call as well.
            future.cancel()
            raise

    def run_here(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one call in this thread: a connection given as `within=` is often bound to the thread that made it."""
        if is_in_loop():
            call.close()
            raise JobmillError(
                "jobs.sync with within= cannot run in an event loop: await the method of jobs itself,"
                " or enqueue in a function that runs in a thread, such as a view with def"
            )
        try:
            self(self._target.open())
        except BaseException:
            call.close()
            raise
        context = contextvars.copy_context()
        with asyncio.Runner() as runner:
            answer = runner.run(call, context=context)
        # What the call noted in its context (that a transaction is open) holds for the caller.
        for variable, value in context.items():
            variable.set(value)
        return answer

    def _started(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        if self._pid != os.getpid():
            # A forked process has the loop, but not the thread that ran it, nor one that may have held the lock.
            self._pid, self._lock, self._running = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._running is None or not self._running[1].is_alive():
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(loop,), name="jobmill-sync", daemon=True)
                thread.start()
                self._running = loop, thread
            return self._running


def is_in_loop() -> bool:
    """Whether this code runs in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class SyncQueue:
    """The methods of one queue for code without an event loop; made by `jobs.sync.queue(name)`."""

    pause = _blocking(Queue.pause)
    resume = _blocking(Queue.resume)
    rate_limit = _blocking(Queue.rate_limit)
    running_limit = _blocking(Queue.running_limit)
    lanes = _blocking(Queue.lanes)
    list_lanes = _blocking(Queue.list_lanes)
    feed = _blocking(Queue.feed)
    settings = _blocking(Queue.settings)

    def __init__(self, sync: Sync, queue: Queue) -> None:
        self._sync = sync
        self._target = queue
        self.name = queue.name

    def __repr__(self) -> str:
        """The name of the queue."""
        return f"<sync methods of {self._target!r}>"

    def lane(
        self,
        name: str,
        *,
        running: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        strict: bool | UnsetType | None = UNSET,
        who: str | None = None,
        note: str | None = None,
    ) -> SyncLane:
        """One lane. Limits that are given are changed at once; None: the rule of the queue applies again."""
        lane = self._target.lane(name, running=running, rate=rate, strict=strict, who=who, note=note)
        if not running is rate is strict is UNSET:
            self._sync(lane)
        return SyncLane(self._sync, lane)


class SyncLane:
    """The methods of one lane for code without an event loop; made by `jobs.sync.queue(name).lane(lane)`."""

    pause = _blocking(LaneHandle.pause)
    resume = _blocking(LaneHandle.resume)
    settings = _blocking(LaneHandle.settings)

    def __init__(self, sync: Sync, lane: LaneHandle) -> None:
        self._sync = sync
        self._target = lane
        self.queue = lane.queue
        self.name = lane.name

    def __repr__(self) -> str:
        """The queue and the lane."""
        return f"<sync methods of {self._target!r}>"


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop):
        loop.run_forever()
        # Other threads may still wait for their calls, and would wait for ever. The runner cancels each call only once,
        # and a call that loses the cancellation would go on.
        while rest := asyncio.all_tasks(loop):
            loop.run_until_complete(end(rest))


async def _awaited(call: Awaitable[T]) -> T:
    return await call
