"""The client: what an application holds to define handlers, enqueue jobs, look at them and act on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

import msgspec
from msgspec import structs

from jobmill.batching import Batcher
from jobmill.context import Context
from jobmill.core import limits
from jobmill.core.changes import (
    CHANGES_FROM,
    EVERYTHING,
    NOW,
    Cancel,
    Change,
    Changed,
    Count,
    Due,
    Filter,
    LogLine,
    NewJob,
    Page,
    Purged,
    Receipt,
    Remove,
    Reprioritise,
    Requeue,
    Reschedule,
    Stats,
    after,
    at,
)
from jobmill.core.durations import to_datetime, to_ms
from jobmill.core.job import FINAL, Job
from jobmill.core.payload import MAX_BYTES, check_size
from jobmill.core.recurrence import Recurrence, first_slot
from jobmill.errors import Gone, HandlerNotFound, Invalid, JobCancelled, JobFailed, ResultTimeout
from jobmill.events import Event, Hooks
from jobmill.filters import FilterOptions, make_filter
from jobmill.handlers import Arguments, ContextHandler, Draft, Handler, HandlerBase, to_plain
from jobmill.options import NOTHING_SAID, Duration, EnqueueOptions, HandlerOptions, Options, enqueue_options
from jobmill.queues import Queue
from jobmill.store import EnqueuesWithin, Store
from jobmill.stores import DEFAULT_URL, store_for

if TYPE_CHECKING:
    from jobmill.sync import Sync
    from jobmill.worker.settings import WorkerOptions
    from jobmill.worker.tick import Tick

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

CHANGED_AT_ONCE = 1_000
#: More than the options of one job can come to: a payload further below the limit needs no closer look.
OPTIONS_ROOM = 64 * 1024


def connect(url: str | None = None, *, store: Store | None = None) -> Client:
    """A client for the store that a URL names: the one given, else JOBMILL_URL, else `jobmill.db` right here."""
    return Client(store or store_for(url or os.environ.get("JOBMILL_URL") or DEFAULT_URL))


class Enqueued:
    """What became of one enqueued job, and a way to its result."""

    __slots__ = ("_client", "receipt")

    def __init__(self, client: Client, receipt: Receipt) -> None:
        self._client = client
        self.receipt = receipt

    @property
    def id(self) -> str:
        """The job that stands for what was enqueued."""
        return self.receipt.id

    @property
    def how(self) -> str:
        """created, exists (same id), duplicate (of a live job, by unique key) or updated (a live recurring job)."""
        return self.receipt.how

    @property
    def created(self) -> bool:
        """Whether this call made the job."""
        return self.receipt.created

    def __repr__(self) -> str:
        """Id and how."""
        return f"Enqueued(id={self.id!r}, how={self.how!r})"

    async def job(self) -> Job:
        """The job as it is now; Gone when it is not there."""
        return await self._client.get(self.id)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job is final and return its result."""
        return await self._client.result(self.id, timeout=timeout)


class Client:
    """One store, the handlers of this application, and everything that can be asked and done."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.handlers: dict[str, HandlerBase[Any]] = {}
        self.hooks = Hooks()
        self._enqueue: Batcher[NewJob, Receipt] = Batcher(store.enqueue)
        self._get: Batcher[str, Job | None] = Batcher(store.get)
        self._is_open = False
        self._sync: Sync | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the store; every call does so by itself."""
        if not self._is_open:
            await self.store.open()
            self._is_open = True

    async def close(self) -> None:
        """Give the store back; the next call opens it again."""
        self._is_open = False
        await self.store.close()

    async def __aenter__(self) -> Client:
        """Open."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    @property
    def sync(self) -> Sync:
        """The same for code without an event loop: `jobs.sync(jobs.get(id))` or `jobs.sync.get(id)`."""
        if self._sync is None:
            from jobmill.sync import Sync

            self._sync = Sync(self)
        return self._sync

    # ------------------------------------------------------------------------------------------------ handlers

    def handler(self, **given: Unpack[HandlerOptions]) -> _Decorator:
        """Make a function the handler of its name (or of `name=`); it stays callable as it was."""
        return _Decorator(self, dict(given))

    def handler_named(self, name: str) -> HandlerBase[Any]:
        """The handler of a name."""
        try:
            return self.handlers[name]
        except KeyError:
            known = ", ".join(sorted(self.handlers)) or "none"
            raise HandlerNotFound(f"there is no handler named {name!r} here; known: {known}") from None

    def on(self, what: str) -> Callable[[F], F]:
        """Hook a function to a fact ("succeeded", "*") or a moment of workers ("start", "stop", "idle", "error")."""
        return lambda hook: self.hooks.add(what, hook)

    # ------------------------------------------------------------------------------------------------ enqueue

    async def enqueue(
        self, name: str, payload: object = None, *, within: Any = None, **given: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Enqueue a job by name, whether or not its handler is known here.

        A handler that is known here has its options and annotations applied; otherwise the payload goes as it is.
        """
        handler = self.handlers.get(name)
        if handler is None:
            options = enqueue_options(dict(given))
            encoded = msgspec.json.encode(to_plain({} if payload is None else payload, "payload"))
        else:
            options = enqueue_options(dict(given), handler.options_given)
            encoded = handler.arguments.encode_payload(payload)
        draft = Draft(limits.check_name(name), encoded, options)
        return (await self.enqueue_drafts([draft], within=within))[0]

    async def enqueue_many(self, drafts: Iterable[Draft], *, within: Any = None) -> list[Enqueued]:
        """Enqueue many in one call: `[send.job(to="a"), send.options(delay="1m").job(to="b")]`; an answer for each."""
        return await self.enqueue_drafts(list(drafts), within=within)

    async def enqueue_drafts(self, drafts: Sequence[Draft], *, within: Any = None) -> list[Enqueued]:
        """Hand drafts to the store, in one step with what else is on its way."""
        if not self._is_open:
            await self.open()
        new_jobs = [self._new_job(draft) for draft in drafts]
        if within is None:
            receipts = await self._enqueue(new_jobs)
        elif isinstance(self.store, EnqueuesWithin):
            receipts = await self.store.enqueue_within(within, new_jobs)
        else:
            raise Invalid("within", f"nothing: the {self.store.name} store has no transactions", within)
        return [Enqueued(self, receipt) for receipt in receipts]

    def _new_job(self, draft: Draft) -> NewJob:
        said = draft.options
        if len(draft.payload_json) > MAX_BYTES - OPTIONS_ROOM:
            check_size(draft.payload_json, b"" if said == NOTHING_SAID else msgspec.json.encode(said))
        due = said.due if said.recurrence is None else self._first_due(said.recurrence, said)
        return NewJob(
            id=said.id or self.store.new_id(),
            name=draft.name,
            queue=said.queue,
            payload_json=draft.payload_json,
            due=due,
            priority=said.priority,
            unique_key=said.unique_key,
            tenant=said.tenant,
            options=said.stored,
            recurrence=said.recurrence,
            keeps_due=said.recurrence is not None and said.due == NOW,
        )

    def _first_due(self, recurrence: Recurrence, said: Options) -> Due:
        """The first run of a recurring job: at its first slot, unless a time was given."""
        now_ms = self.store.now()
        first = first_slot(recurrence, now_ms) if said.due == NOW else said.due.resolve(now_ms)
        until_ms = recurrence.until_ms
        if first is None or (until_ms is not None and first > until_ms):
            until = None if until_ms is None else str(to_datetime(until_ms))
            raise Invalid("until", "an end that is not before the first run", until)
        return at(first) if said.due == NOW else said.due

    # ------------------------------------------------------------------------------------------------ look

    async def get(self, id: str) -> Job:
        """One job; Gone when it is not there."""
        await self.open()
        job = (await self._get([id]))[0]
        if job is None:
            raise Gone(f"there is no job {id!r} in the {self.store.name} store: never enqueued, or already removed")
        return job

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job is final: its result, or JobFailed, JobCancelled, ResultTimeout, Gone."""
        limit = None if timeout is None else to_ms(timeout, "timeout") / 1000
        # The first look is not timed: with timeout=0 it tells what there is to tell now.
        job = await self.get(id)
        if not job.is_final:
            try:
                async with asyncio.timeout(limit):
                    job = await self._final(id)
            except TimeoutError:
                raise ResultTimeout(f"job {id!r} was not final after {timeout}; it goes on") from None
        if job.state == "failed":
            raise JobFailed(f"job {id!r} ({job.name}) failed: {job.error}")
        if job.state == "cancelled":
            raise JobCancelled(f"job {id!r} ({job.name}) was cancelled")
        return job.result

    async def _final(self, id: str) -> Job:
        pause = 0.002
        while True:
            await asyncio.sleep(pause)
            job = await self.get(id)
            if job.is_final:
                return job
            pause = min(pause * 1.5, 0.25)

    async def find(self, *, cursor: str | None = None, limit: int = 100, **filters: Unpack[FilterOptions]) -> Page:
        """A page of matches; `page.next` and `page.previous` are cursors to go on from."""
        wanted = make_filter(filters)
        limits.check_int(limit, "limit", 1, 10_000)
        await self.open()
        return await self.store.find(wanted, cursor, limit)

    async def find_all(self, **filters: Unpack[FilterOptions]) -> AsyncIterator[Job]:
        """Every match, page by page."""
        wanted = make_filter(filters)
        await self.open()
        async for job in self._matches(wanted):
            yield job

    async def _matches(self, wanted: Filter) -> AsyncIterator[Job]:
        cursor: str | None = None
        while True:
            page = await self.store.find(wanted, cursor, 1_000)
            for job in page.jobs:
                yield job
            cursor = page.next
            if cursor is None:
                return

    async def count(self, **filters: Unpack[FilterOptions]) -> list[Count]:
        """How many match, by queue, name and state."""
        wanted = make_filter(filters)
        await self.open()
        return await self.store.count(wanted)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """Counts, the oldest waiting job, and how long jobs take, per queue and name."""
        await self.open()
        return await self.store.stats(queue, name)

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """The last lines that a job logged."""
        limits.check_int(limit, "limit", 1)
        await self.open()
        return await self.store.logs(id, limit)

    async def events(
        self, queue: str, *, after: str | None = None, follow: bool = True, every: Duration = 0.1
    ) -> AsyncIterator[Event]:
        """The feed of a queue (switch it on with `jobs.queue(name).feed()`), and what comes, unless `follow=False`."""
        limits.check_queue(queue)
        pause = to_ms(every, "every", least=1) / 1000
        await self.open()
        while True:
            events = await self.store.events(queue, after)
            for event in events:
                yield event
                after = event.id
            if not events:
                if not follow:
                    return
                await asyncio.sleep(pause)

    async def publish(self, type: str, job: Job, **data: Any) -> None:
        """Add an event of your own to the feed of the job's queue."""
        limits.check_name(type, "type")
        plain = to_plain(data, "data")
        await self.open()
        now_ms = self.store.now()
        event = Event(
            type=type, job_id=job.id, name=job.name, queue=job.queue, at_ms=now_ms, attempt=job.attempt, data=plain
        )
        await self.store.publish([event])

    # ------------------------------------------------------------------------------------------------ act

    async def cancel(
        self, which: str | Iterable[str] | None = None, *, all: bool = False, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Cancel waiting and running jobs: one id, several, those that match, or all=True."""
        return await self._change(_wanted(which, all, filters), Cancel())

    async def requeue(
        self,
        which: str | Iterable[str] | None = None,
        *,
        all: bool = False,
        spread: Duration = 0,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Have final jobs run again with fresh budgets; several of them evenly over the period `spread`."""
        spread_ms = to_ms(spread, "spread")
        wanted = _wanted(which, all, filters)
        total = 0
        if spread_ms and isinstance(wanted, list):
            total = len(wanted)
        elif spread_ms:
            total = sum(one.count for one in await self.count(**filters) if one.state in FINAL)
        return await self._change(wanted, Requeue(step_ms=spread_ms / max(1, total)))

    async def reschedule(
        self,
        which: str | Iterable[str] | None = None,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        all: bool = False,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Give waiting jobs another due time."""
        due = enqueue_options({"delay": delay, "due_at": due_at}).due
        return await self._change(_wanted(which, all, filters), Reschedule(due))

    async def reprioritise(
        self,
        which: str | Iterable[str] | None = None,
        *,
        priority: int,
        all: bool = False,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Give waiting jobs another priority."""
        return await self._change(_wanted(which, all, filters), Reprioritise(limits.check_priority(priority)))

    async def remove(
        self, which: str | Iterable[str] | None = None, *, all: bool = False, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Remove jobs that are not running (cancel those first)."""
        return await self._change(_wanted(which, all, filters), Remove())

    async def _change(self, wanted: Filter | list[str], change: Change) -> Changed:
        await self.open()
        changed: list[str] = []
        refused: dict[str, str] = {}
        more = True
        while more:
            if isinstance(wanted, list):
                part, wanted = wanted[:CHANGED_AT_ONCE], wanted[CHANGED_AT_ONCE:]
                answer = await self.store.change(part, change, CHANGED_AT_ONCE)
                more = bool(wanted)
            else:
                answer = await self.store.change(wanted, change, CHANGED_AT_ONCE)
                more = answer.more
            changed += answer.changed
            refused.update(answer.refused)
            change = _moved_on(change, len(answer.changed))
            if more and isinstance(wanted, Filter) and len(answer.refused) > CHANGED_AT_ONCE // 2:
                # What is refused matches still, and would fill the next call as well: go on by id, without it.
                wanted = [id for id in await self._changeable(wanted, change) if id not in refused]
        return Changed(changed=changed, refused=refused)

    async def _changeable(self, wanted: Filter, change: Change) -> list[str]:
        """Which jobs a change by this filter would take."""
        states = [state for state in CHANGES_FROM[type(change)] if wanted.states is None or state in wanted.states]
        return [job.id async for job in self._matches(structs.replace(wanted, states=tuple(states)))]

    async def purge(self) -> int:
        """Remove final jobs past their retention now (workers do so by themselves); how many went."""
        await self.open()
        removed = 0
        while True:
            purged: Purged = await self.store.purge()
            removed += purged.removed
            if not purged.more:
                return removed

    def queue(self, name: str) -> Queue:
        """A queue: pause, resume, limits, settings, feed."""
        return Queue(self, limits.check_queue(name))

    async def queues(self) -> list[str]:
        """All queues that have jobs or settings."""
        await self.open()
        counted = {one.queue for one in await self.store.count(Filter())}
        return sorted(counted | set(await self.store.settings()))

    # ------------------------------------------------------------------------------------------------ work

    async def tick(self, limit: int = 10, *, queues: Sequence[str] | None = None) -> Tick:
        """Claim up to `limit` due jobs, run them in this process, settle them; a summary."""
        from jobmill.worker.tick import Tick, tick

        limits.check_int(limit, "limit", 1, 10_000)
        if not self.handlers:
            return Tick()
        await self.open()
        return await tick(self, limit, queues)

    async def run_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Work until SIGTERM or SIGINT (or until this task is cancelled)."""
        from jobmill.worker.worker import Worker

        await Worker(self, **options).run()

    def run(self, main: Callable[[], Awaitable[Any]] | None = None, **options: Unpack[WorkerOptions]) -> None:
        """Everything in one file: run `main` (enqueue something), work, and end on Ctrl-C."""
        from jobmill.worker.worker import run_with_main

        asyncio.run(run_with_main(self, main, **options))


class _Decorator:
    """What `@jobs.handler(...)` does: typed so that checkers see through it."""

    def __init__(self, client: Client, given: dict[str, Any]) -> None:
        self._client = client
        self._given = given

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R]) -> ContextHandler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Handler[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:
        """Register the function."""
        kind: Any = ContextHandler if Arguments(fn).takes_context else Handler
        made = kind(self._client, fn, self._given)
        if made.name in self._client.handlers:
            other = self._client.handlers[made.name].fn
            raise Invalid(
                "name", f"a name that no other handler has ({other.__module__}.{other.__qualname__} has it)", made.name
            )
        self._client.handlers[made.name] = made
        return made


def _wanted(which: str | Iterable[str] | None, all: bool, filters: FilterOptions) -> Filter | list[str]:
    """Which jobs an act is for; never all of them by accident, as where the only filter that was given is None."""
    wanted = make_filter(filters)
    if which is None:
        if wanted == EVERYTHING and not all:
            raise Invalid("which", "ids, at least one filter, or all=True", None)
        return wanted
    if all or wanted != EVERYTHING:
        raise Invalid("which", "ids, or filters, or all=True, not several of them", which)
    given: Any = which
    ids = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for id in ids:
        if not isinstance(id, str):
            raise Invalid("which", "an id, or several", id)
    return ids


def _moved_on(change: Change, done: int) -> Change:
    """A spread requeue goes on where the last batch ended."""
    if isinstance(change, Requeue) and change.step_ms:
        return structs.replace(change, due=after(change.due.after_ms + round(done * change.step_ms)))
    return change


__all__ = ["Client", "Enqueued", "connect"]
