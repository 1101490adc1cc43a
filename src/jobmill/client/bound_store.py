"""The store that a client uses now: its own one, or the one of `jobs.using(store)`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from jobmill.core.job import Job
from jobmill.core.values import NewJob, Receipt
from jobmill.runtime.batcher import Batcher
from jobmill.store import EnqueuesShared, EnqueuesWithin, Store, WouldWait

if TYPE_CHECKING:
    from jobmill.client.client import Client


_get_unique_key = attrgetter("unique_key")

Enqueue: TypeAlias = Callable[[Sequence[NewJob]], Coroutine[Any, Any, list[Receipt]]]


class KeyedApart:
    """Enqueues jobs with unique keys apart from others: a transaction that holds a key holds up only its jobs."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store, EnqueuesShared)
        self._alone = store.enqueue
        self._plain: Enqueue = Batcher(store.enqueue)
        self._keyed: Enqueue = Batcher(store.enqueue_shared)

    def __call__(self, new_jobs: Sequence[NewJob]) -> Coroutine[Any, Any, list[Receipt]]:
        """The receipts of these jobs, in order."""
        has_keys = any(map(_get_unique_key, new_jobs))
        return (self._enqueue_keyed if has_keys else self._plain)(new_jobs)

    async def _enqueue_keyed(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        try:
            return await self._keyed(new_jobs)
        except WouldWait:  # for one of the keys in the batch, maybe of another caller
            return await self._alone(new_jobs)


class BoundStore:
    """A store with what a client keeps for it: whether it is open, and the batchers of its calls."""

    __slots__ = ("enqueue", "get", "is_open", "store", "transactional")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_open = False
        self.get: Batcher[str, Job | None] = Batcher(store.get)
        self.enqueue: Enqueue = KeyedApart(store) if isinstance(store, EnqueuesShared) else Batcher(store.enqueue)
        self.transactional: EnqueuesWithin | None = store if isinstance(store, EnqueuesWithin) else None


class StoreSwap:
    """Another store for a client, for a while: `with jobs.using(store):` or `async with jobs.using(store):`."""

    def __init__(self, client: Client, store: Store, swaps: list[StoreSwap], *, everywhere: bool) -> None:
        self._client = client
        self._swaps = swaps
        self._entered = False
        self.bound = BoundStore(store)
        #: Whether it also holds for code that does not inherit the context, such as threads.
        self.everywhere = everywhere
        #: The swap around this one in the same context, maybe of another client.
        self.outer: StoreSwap | None = None

    def __enter__(self) -> Client:
        """The client calls this store from now on. Who made the store closes it."""
        if self._entered:
            raise RuntimeError("jobs.using(...) can be entered once: call it again")
        self._entered = True
        self.outer = _innermost.get()
        _innermost.set(self)
        self._swaps.append(self)
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The client calls its former store again."""
        self._swaps.remove(self)
        # Fixtures may end in another context than they began in. There, the swap is not in the list any more.
        if _innermost.get() is self:
            _innermost.set(self.outer)

    async def __aenter__(self) -> Client:
        """The same, and the store is opened."""
        client = self.__enter__()
        try:
            await client.open()
        except BaseException:  # `__aexit__` is not called
            await self.__aexit__(None, None, None)
            raise
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The same, and the store is closed."""
        try:
            self.bound.is_open = False
            await self.bound.store.close()
        finally:
            self.__exit__(kind, error, traceback)


#: The innermost swap of this context. Threads of handlers and `jobs.sync` inherit it, as all context variables.
_innermost: ContextVar[StoreSwap | None] = ContextVar("jobmill_using", default=None)


def swapped(swaps: list[StoreSwap]) -> BoundStore | None:
    """The store of the innermost of these swaps in this context; else of the last one that holds everywhere."""
    swap = _innermost.get()
    while swap is not None:
        # A context may outlive a swap: a task that still runs, or an event loop that began in a test.
        if swap in swaps:
            return swap.bound
        swap = swap.outer
    return next((one.bound for one in reversed(swaps) if one.everywhere), None)
