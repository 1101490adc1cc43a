"""The client: what an application holds to define handlers, enqueue jobs, look at them and act on them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

import msgspec

from jobmill.client.manage import Acts
from jobmill.client.queue import Queue
from jobmill.core import limits
from jobmill.core.durations import to_datetime
from jobmill.core.job import Job
from jobmill.core.payload import MAX_BYTES, check_size
from jobmill.core.recurrence import Recurrence, first_slot
from jobmill.core.unique_keys import dedupe_key, storable_key
from jobmill.core.values import NOW, Due, NewJob, Receipt, at
from jobmill.errors import HandlerNotFound, InvalidValue
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Arguments, ContextHandler, Draft, Handler, HandlerBase, to_plain
from jobmill.handlers.hooks import Event, EventType, Hooks, Moment
from jobmill.handlers.options import NOTHING_SAID, Duration, EnqueueOptions, HandlerOptions, Options, enqueue_options
from jobmill.handlers.usage import M, Meter, check_meter
from jobmill.runtime.batcher import Batcher
from jobmill.store import EnqueuesWithin, Store
from jobmill.stores import DEFAULT_URL, store_for

if TYPE_CHECKING:
    from jobmill.client.sync import Sync
    from jobmill.worker.options import WorkerOptions
    from jobmill.worker.tick import Tick

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

#: More than the options of one job can come to: a payload further below the limit needs no closer look.
OPTIONS_ROOM = 64 * 1024


def connect(url: str | None = None, *, store: Store | None = None) -> Client:
    """A client for the store that a URL names: the one given, else JOBMILL_URL, else `jobmill.db` right here."""
    if url is not None and store is not None:
        raise InvalidValue("url", "either a url or a store, not both", url)
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
        """The job as it is now; JobNotFound when it is not there."""
        return await self._client.get(self.id)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job is final and return its result."""
        return await self._client.result(self.id, timeout=timeout)


class Client(Acts):
    """One store, the handlers of this application, and everything that can be asked and done."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.handlers: dict[str, HandlerBase[Any]] = {}
        self.hooks = Hooks()
        self.meters: list[Meter] = []
        self._enqueue: Batcher[NewJob, Receipt] = Batcher(store.enqueue)
        self._transactional = store if isinstance(store, EnqueuesWithin) else None
        self._sync: Sync | None = None

    # ------------------------------------------------------------------------------------------------ life

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
            from jobmill.client.sync import Sync

            self._sync = Sync(self)
        return self._sync

    # ------------------------------------------------------------------------------------------------ handlers

    @overload
    def handler(self, fn: Callable[Concatenate[Context, P], R], /) -> ContextHandler[P, R]: ...
    @overload
    def handler(self, fn: Callable[P, R], /) -> Handler[P, R]: ...
    @overload
    def handler(self, **given: Unpack[HandlerOptions]) -> _Decorator: ...
    def handler(self, *fn: Callable[..., Any], **given: Any) -> Any:
        """Make a function the handler of its name (or of `name=`); it stays callable as it was.

        `@jobs.handler` as it is, or `@jobs.handler(max_attempts=5, …)` with options.
        """
        decorator = _Decorator(self, given)
        return decorator(*fn) if fn else decorator

    def handler_named(self, name: str) -> HandlerBase[Any]:
        """The handler of a name."""
        try:
            return self.handlers[name]
        except KeyError:
            known = ", ".join(sorted(self.handlers)) or "none"
            raise HandlerNotFound(f"there is no handler named {name!r} here; known: {known}") from None

    def on(self, what: EventType | Moment | Literal["*"]) -> Callable[[F], F]:
        """Hook a function to a fact ("succeeded", "*") or a moment of workers ("start", "stop", "idle", "error")."""
        return lambda hook: self.hooks.add(what, hook)

    def meter(self, meter: M) -> M:
        """Hand the usage of every run to a function, or keep it in the table of a store: `jobs.meter(jobs.store)`."""
        self.meters.append(check_meter(meter))
        return meter

    # ------------------------------------------------------------------------------------------------ enqueue

    def job(self, name: str, payload: object = None, **given: Unpack[EnqueueOptions]) -> Draft:
        """A job as a value, by the name of its handler, to be enqueued with others by `enqueue_many`.

        A handler that is known here has its options and annotations applied; otherwise the payload goes as it is.
        """
        handler = self.handlers.get(name)
        if handler is None:
            options = enqueue_options(dict(given))
            encoded = msgspec.json.encode(to_plain({} if payload is None else payload, "payload"))
        else:
            options = enqueue_options(dict(given), handler.options_given)
            encoded = handler.arguments.encode_payload(payload)
        return Draft(limits.check_name(name), encoded, options)

    async def enqueue(
        self, name: str, payload: object = None, *, within: Any = None, **given: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Enqueue a job by the name of its handler, whether or not that is known here."""
        return (await self.enqueue_drafts([self.job(name, payload, **given)], within=within))[0]

    async def enqueue_many(self, drafts: Iterable[Draft], *, within: Any = None) -> list[Enqueued]:
        """Enqueue many in one call: `[send.job(to="a"), send.options(delay="1m").job(to="b")]`; an answer for each."""
        return await self.enqueue_drafts(list(drafts), within=within)

    async def enqueue_drafts(self, drafts: Sequence[Draft], *, within: Any = None) -> list[Enqueued]:
        """Hand drafts to the store, in one step with what else is on its way."""
        if not self._is_open:
            await self.open()
        new_jobs = [self._new_job(draft) for draft in drafts]
        if within is None:
            if self._transactional is not None:
                self._transactional.check_unlocked()
            receipts = await self._enqueue(new_jobs)
        elif self._transactional is not None:
            receipts = await self._transactional.enqueue_within(within, new_jobs)
        else:
            raise InvalidValue("within", f"nothing: the {self.store.name} store has no transactions", within)
        if self.hooks.wants_events:
            await self._tell(new_jobs, receipts)
        return [Enqueued(self, receipt) for receipt in receipts]

    async def _tell(self, new_jobs: Sequence[NewJob], receipts: Sequence[Receipt]) -> None:
        """The hooks of this process; a transaction of the caller's own may still be rolled back."""
        now_ms = self.store.now()
        for new, receipt in zip(new_jobs, receipts, strict=True):
            if receipt.created:
                event = Event(type="enqueued", job_id=new.id, name=new.name, queue=new.queue, at_ms=now_ms)
                await self.hooks.tell(event)

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
            unique_key=_dedupe(draft) if said.dedupe else said.unique_key,
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
            raise InvalidValue("until", "an end that is not before the first run", until)
        return at(first) if said.due == NOW else said.due

    def queue(self, name: str) -> Queue:
        """A queue: pause, resume, limits, settings, feed."""
        return Queue(self, limits.check_queue(name))

    # ------------------------------------------------------------------------------------------------ work

    async def tick(self, limit: int = 10, *, queues: Sequence[str] | None = None) -> Tick:
        """Claim up to `limit` due jobs, run them in this process, settle them; a summary."""
        from jobmill.worker.tick import tick

        limits.check_int(limit, "limit", 1, 10_000)
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


def _dedupe(draft: Draft) -> str:
    """The unique key of a job that should not be there twice: of the payload as it is stored."""
    return storable_key(dedupe_key(draft.name, draft.options.tenant, msgspec.json.decode(draft.payload_json)))


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
            raise InvalidValue(
                "name", f"a name that no other handler has ({other.__module__}.{other.__qualname__} has it)", made.name
            )
        self._client.handlers[made.name] = made
        return made
