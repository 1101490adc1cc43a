"""The client: one store and the handlers of one application."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, Unpack

import msgspec
from msgspec import Raw

from jobmill.client.bound_store import StoreSwap
from jobmill.client.filters import make_filter
from jobmill.client.flows import FlowPlan, all_drafts
from jobmill.client.handler_decorator import HandlerDecorator
from jobmill.client.manage import ManagesJobs
from jobmill.client.new_jobs import Drafts, jobs_of_plan, named_draft, new_job
from jobmill.client.queue import Queue
from jobmill.core import limits
from jobmill.core.events import EventType, enqueued_events
from jobmill.core.flows import Signal
from jobmill.core.job import Job
from jobmill.core.payload import check_size
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import HandlerNotFound, InvalidValue, JobNotFound
from jobmill.handlers.around import AroundT
from jobmill.handlers.conversion import to_plain
from jobmill.handlers.draft import Draft, Group
from jobmill.handlers.enqueued import Enqueued
from jobmill.handlers.flow import Flow
from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import Hooks, LifespanT, Moment
from jobmill.handlers.observers import Begun, Observed, ObserverT
from jobmill.handlers.options import EnqueueOptions
from jobmill.handlers.usage import U, UsageRecorder, check_usage_recorder
from jobmill.store import RecordsUsage, Store
from jobmill.stores import DEFAULT_URL, store_for
from jobmill.stores.common.url import without_credentials

if TYPE_CHECKING:
    from jobmill.client.app_lifespan import AppLifespan, IsStopping
    from jobmill.client.sync import Sync
    from jobmill.worker.options import WorkerOptions
    from jobmill.worker.tick import Tick

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: Makes the jobs of drafts, for a store.
MakeJobs: TypeAlias = Callable[[Store, Drafts], list[NewJob]]


def connect(url: str | None = None, *, store: Store | None = None, who: str = "code") -> Client:
    """A client for the store of this URL; without one, of JOBMILL_URL, else of `jobmill.db` in this directory.

    `who` is the name in the audit log of what this client does.
    """
    if url is not None and store is not None:
        raise InvalidValue("url", "either a url or a store, not both", without_credentials(str(url)))
    if url in (None, ""):
        url = os.environ.get("JOBMILL_URL") or DEFAULT_URL
    return Client(store or store_for(url), who=who)


class Client(ManagesJobs):
    """One store and the handlers of one application: define handlers, enqueue, query and manage jobs."""

    #: Whether callers give due times of their own clock, as Django's `run_after`: the clock of a test kit begins now.
    gives_times = False
    #: The payload that a form of the dashboard begins with.
    payload_form = "{}"

    def __init__(self, store: Store, *, who: str = "code") -> None:
        super().__init__(store, limits.check_note(who, "who"))
        self.hooks = Hooks()
        self._usage_recorders: list[UsageRecorder] = []

    def __repr__(self) -> str:
        """The store and the number of handlers."""
        return f"Client(store={self.store.name!r}, address={self.store.address!r}, handlers={len(self.handlers)})"

    # ------------------------------------------------------------------------------------------------ open and close

    async def close(self) -> None:
        """Close the store; the next call opens it again."""
        bound = self._bound
        bound.is_open = False
        await bound.store.close()

    def using(self, store: Store, *, everywhere: bool = False) -> StoreSwap:
        """Use another store for a while: `with jobs.using(MemoryStore()):`. The handlers stay.

        It holds for this context: this task or thread, what it calls, and the tasks that it starts. Other tasks and
        threads keep their store, so that tests may run in parallel. With `everywhere`, it also holds for code that is
        in no such context, for example in threads that do not inherit it.

        `async with` opens the store and closes it at the end; with `with`, close it yourself.
        """
        return StoreSwap(self, store, self._swaps, everywhere=everywhere)

    async def __aenter__(self) -> Client:
        """Open the store."""
        try:
            await self.open()
        except BaseException:  # `__aexit__` is not called
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""
        await self.close()

    @cached_property
    def sync(self) -> Sync:
        """The same methods without an event loop: `jobs.sync.get(id)`, `jobs.sync(send.enqueue(to="ada"))`."""
        from jobmill.client.sync import Sync

        return Sync(self)

    # ------------------------------------------------------------------------------------------------ handlers

    @property
    def handler(self) -> HandlerDecorator:
        """Make a function the handler of its name (or of `name=`); it stays callable as it was.

        `@jobs.handler` as it is, or `@jobs.handler(max_attempts=5, …)` with options.
        """
        return HandlerDecorator(self, {})

    def handler_named(self, name: str) -> Handler[..., Any]:
        """The handler of a name."""
        try:
            return self.handlers[name]
        except KeyError:
            known = ", ".join(sorted(self.handlers)) or "none"
            raise HandlerNotFound(f"there is no handler named {name!r} here; known: {known}") from None

    @property
    def defined_handlers(self) -> dict[str, Handler[..., Any]]:
        """The handlers that were defined so far. The client of a framework may find others when `handlers` is read."""
        return self.handlers

    def on(self, what: EventType | Moment | Literal["*"]) -> Callable[[F], F]:
        """Call a function on an event ("succeeded", "*") or a moment of a worker ("start", "stop", "idle", "error")."""
        return lambda hook: self.hooks.add(what, hook)

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Open what handlers share, such as a database pool: an async generator function, once in each worker process.

        It runs to its `yield` when a worker starts, and to its end when the worker stops. What it yields is
        `context.state`.
        """
        return self.hooks.add_lifespan(function)

    def around(self, function: AroundT) -> AroundT:
        """Wrap each run: an async generator function that gets the context, and is part of the run.

        A plain generator function runs where the handler runs: in its thread, if the handler is not async.
        """
        return self.hooks.around.add(function)

    def observe(self, what: Observed) -> Callable[[ObserverT], ObserverT]:
        """Let a generator function observe each "run" of a job here, or each call that enqueues ("enqueue")."""
        return lambda observer: self.hooks.observers.add(what, observer)

    def record_usage(self, recorder: U) -> U:
        """Give a usage record of each run to a function, or to a store's table: `jobs.record_usage(jobs.store)`."""
        self._usage_recorders.append(check_usage_recorder(recorder))
        return recorder

    @property
    def usage_recorders(self) -> list[UsageRecorder]:
        """What gets usage records. Inside `using(store)` that store stands for the own one, if it has a table."""
        store = self.store
        instead = [store] if isinstance(store, RecordsUsage) else []
        return [
            one for recorder in self._usage_recorders for one in (instead if self._is_own(recorder) else [recorder])
        ]

    def _is_own(self, recorder: UsageRecorder) -> bool:
        """Whether a usage recorder is the own store of this client."""
        return recorder is self._own.store

    # ------------------------------------------------------------------------------------------------ enqueue

    def draft(self, name: str, payload: object = None, **given: Unpack[EnqueueOptions]) -> Draft[Any]:
        """A job as a value, by the name of its handler, to be enqueued with others by `enqueue_many`.

        Where this client has a handler of that name, its options and annotations apply.
        """
        return named_draft(self, self.handlers.get(name), name, payload, dict(given))

    def group(self, drafts: Iterable[Draft[T] | Group[T]], *, id: str | None = None) -> Group[T]:
        """Several drafts, whose results are one argument of another draft: `merge.draft(jobs.group(...).results)`.

        With an `id`, the ids of its jobs follow from it, so that the same group is enqueued once.
        """
        return Group(self, all_drafts(drafts), None if id is None else limits.check_id(id))

    def chain(self, *drafts: Draft[Any]) -> Draft[Any]:
        """The last of these drafts, to run after the one before it, and so on. It passes no results."""
        last, *rest = drafts or (None,)
        if last is None:
            raise InvalidValue("drafts", "at least one draft", drafts)
        for draft in rest:
            last = draft.after(last)
        return last

    async def enqueue(
        self, name: str, payload: object = None, *, within: Any = None, **given: Unpack[EnqueueOptions]
    ) -> Enqueued[Any]:
        """Enqueue a job by the name of its handler, which may be defined in another application."""
        return (await self.enqueue_many((self.draft(name, payload, **given),), within=within))[0]

    def enqueue_many(
        self, drafts: Iterable[Draft[Any]], *, within: Any = None
    ) -> Coroutine[Any, Any, list[Enqueued[Any]]]:
        """Enqueue many jobs in one call: `[send.draft(to="a"), send.options(delay="1m").draft(to="b")]`.

        Drafts that these wait for are enqueued as well.
        """
        drafts = tuple(drafts)
        for draft in drafts:  # a loop is cheaper than any() for a single draft
            if draft.needs:
                return self._send_flow(drafts, within)
        return (self._send_observed if self.hooks.observers.enqueue else self._send)(drafts, within)

    def send(self, drafts: Sequence[Draft[Any]]) -> list[str]:
        """Enqueue drafts from code without an event loop, for interfaces of other systems; the ids of the jobs."""
        return [one.id for one in self.sync.enqueue_many(drafts)]

    def not_yet_enqueued(self) -> str:
        """For the failure of a test: why a job may be missing, such as a transaction that is still open."""
        return ""

    async def enqueue_group(self, group: Group[Any], *, within: Any = None) -> Flow:
        """Enqueue the drafts of a group, and all that they wait for, in one call."""
        if not group.drafts:
            return Flow(self, group.id or self.store.new_id())
        return (await self._send_flow(group.drafts, within, group.id))[0].flow

    async def _send_flow(self, drafts: Drafts, within: Any, flow: str | None = None) -> list[Enqueued[Any]]:
        plan = FlowPlan.of(drafts, flow)
        send = self._send_observed if self.hooks.observers.enqueue else self._send
        enqueued = await send(plan.drafts, within, partial(jobs_of_plan, plan))
        return [enqueued[at] for at in plan.wanted]

    async def _send_observed(self, drafts: Drafts, within: Any, make: MakeJobs | None = None) -> list[Enqueued[Any]]:
        drafts = list(drafts)
        begun = Begun(self.hooks.observers.enqueue, drafts)
        try:
            enqueued = await self._send(drafts, within, make)
        except BaseException as error:
            begun.fail(error)
            raise
        begun.end(enqueued)
        return enqueued

    async def _send(
        self, drafts: Sequence[Draft[Any]], within: Any, make: MakeJobs | None = None
    ) -> list[Enqueued[Any]]:
        bound = self._bound
        if not bound.is_open:
            await self.open()
        new_jobs = [new_job(bound.store, draft) for draft in drafts] if make is None else make(bound.store, drafts)
        if within is None:
            if bound.transactional is not None:
                bound.transactional.check_unlocked()
            receipts = await bound.enqueue(new_jobs)
            for count in self.hooks.count_enqueued:
                count(new_jobs, receipts)
        else:
            receipts = await self._enqueue_within(within, new_jobs)
        if self.hooks.wants_events:
            await self._call_hooks(new_jobs, receipts)
        enqueued: list[Enqueued[Any]] = [Enqueued(self, receipt) for receipt in receipts]
        return enqueued if make is None else [one.in_flow(new_jobs[0].flow) for one in enqueued]

    async def _enqueue_within(self, within: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        transactional = self._bound.transactional
        if transactional is None:
            raise InvalidValue("within", f"nothing: the {self.store.name} store has no transactions", within)
        return await transactional.enqueue_within(within, new_jobs)

    async def _call_hooks(self, new_jobs: Sequence[NewJob], receipts: Sequence[Receipt]) -> None:
        # Within a transaction of the caller these jobs may still be rolled back.
        for event in enqueued_events(new_jobs, receipts, self.store.now()):
            await self.hooks.call_event(event)

    def child_jobs(self, drafts: Sequence[Draft[Any]], parent: Job, first: int) -> tuple[list[NewJob], list[int]]:
        """Drafts that a handler runs, as new jobs. Their ids follow from that of the job, the same in every run."""
        plan = FlowPlan.of(drafts, parent.flow or parent.id)
        ids = (f"{parent.id}.{number}" for number in itertools.count(first))
        made = plan.new_jobs(plan.drafts, lambda: next(ids), partial(new_job, self.store), derive=False)
        return made, plan.wanted

    def decode_result_of(self, name: str, result: Raw) -> Any:
        """A result as the type that the handler of this name returns, if this client has it."""
        handler = self.handlers.get(name)
        return msgspec.json.decode(result) if handler is None else handler.decode_result(result)

    async def signal(self, id: str, name: str, value: object = None) -> bool:
        """Send a value to a job that waits for it, or will wait for it: `context.wait_for(name, ...)`.

        The first signal of a name counts. Returns False if the job had one already, or has ended. Raises JobNotFound.
        """
        limits.check_known_id(id)
        encoded = msgspec.json.encode(to_plain(value, "value"))
        check_size(encoded, field="value")
        await self.open()
        answer = await self.store.signal(id, Signal(name=limits.check_name(name), value_json=encoded))
        if answer == "unknown":
            raise self._not_found(id)
        return answer == "stored"

    async def flow(self, id: str) -> Flow:
        """A flow by its id; JobNotFound if the store has no job of it."""
        await self.open()
        if not (await self.store.count_up_to(make_filter({"flow": id}), 1)).count:
            raise JobNotFound(f"there is no flow {id!r} in the {self.store.name} store: its jobs were removed")
        return Flow(self, id)

    def queue(self, name: str) -> Queue:
        """One queue: pause, resume, limits, settings, event feed."""
        return Queue(self, limits.check_queue(name))

    # ------------------------------------------------------------------------------------------------ work

    async def tick(self, limit: int = 10, *, queues: Sequence[str] | None = None) -> Tick:
        """Claim up to `limit` due jobs, run them in this process and settle them; how many ended how."""
        from jobmill.worker.worker import Worker

        limits.check_int(limit, "limit", 1, 10_000)
        return await Worker(self, concurrency=limit, queues=queues or ()).tick()

    def app_lifespan(
        self,
        *,
        worker: bool | None = None,
        inner: AppLifespan | None = None,
        is_stopping: IsStopping | None = None,
        **options: Unpack[WorkerOptions],
    ) -> AppLifespan:
        """The lifespan of an application of FastAPI or Starlette: `FastAPI(lifespan=jobs.app_lifespan())`.

        It opens and closes this client. `worker=True` also runs a worker in the event loop of the application, with
        these options and without signal handlers; `worker=False` ignores the options. The worker stops when the server
        begins to stop, if that is uvicorn or if `is_stopping` says so; otherwise when the lifespan ends. `inner` is a
        lifespan of your own.
        """
        from jobmill.client.app_lifespan import app_lifespan

        return app_lifespan(self, worker=worker, inner=inner, is_stopping=is_stopping, options=options)

    async def dependency(self) -> Client:
        """This client, for frameworks that inject what a function returns: `Depends(jobs.dependency)`."""
        return self

    async def run_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Run a worker until SIGTERM, SIGINT or the cancellation of this task."""
        from jobmill.worker.worker import Worker

        await Worker(self, **options).run()

    def run(self, main: Callable[[], Awaitable[Any]] | None = None, **options: Unpack[WorkerOptions]) -> None:
        """For programs of one file: run a worker and, beside it, `main`; end on Ctrl-C, or when `main` raises."""
        asyncio.run(self._run_with_main(main, **options))

    async def _run_with_main(self, main: Callable[[], Awaitable[Any]] | None, **options: Unpack[WorkerOptions]) -> None:
        worker = asyncio.ensure_future(self.run_worker(**options))
        try:
            if main is not None:
                first = asyncio.ensure_future(main())
                await asyncio.wait([worker, first], return_when="FIRST_COMPLETED")
                if first.done():
                    first.result()
                else:
                    first.cancel()
            await worker
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            await self.close()
