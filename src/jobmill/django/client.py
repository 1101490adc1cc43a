"""The client of an entry of TASKS: one for each process, whose store is that of the settings of the moment.

So hooks, handlers and references to it stay, while a test runner replaces the databases and tests change the settings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from weakref import WeakSet

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import NO_DB_ALIAS
from msgspec import structs

from jobmill.client.bound_store import BoundStore, StoreSwap, swapped
from jobmill.client.client import Client
from jobmill.client.sync import is_in_loop
from jobmill.django.discovery import find_tasks
from jobmill.django.interface import task_backends
from jobmill.django.on_commit import waiting_for_commit
from jobmill.django.runs import add_handlers, as_in_request
from jobmill.django.store_now import MEMORY, forget_found, store_now
from jobmill.handlers.context import Context
from jobmill.handlers.draft import Draft
from jobmill.handlers.handler import Handler
from jobmill.handlers.usage import UsageRecorder
from jobmill.store import Store
from jobmill.stores import store_for

_lock = threading.Lock()
_clients: dict[str, DjangoClient] = {}
#: Of all clients: the test kit gives its store to all entries of TASKS.
_all_swaps: Final[list[StoreSwap]] = []


class DjangoClient(Client):
    """A client with the Tasks as handlers."""

    gives_times = True
    payload_form = '{"args": [], "kwargs": {}}'

    def __init__(self, alias: str) -> None:
        self.alias = alias
        #: By URL.
        self._stores: dict[str, BoundStore] = {}
        #: Whether the test still runs whose jobs are in memory.
        self._is_memory_kept: Callable[[], bool] = lambda: True
        #: All that there were: a usage recorder may be the real one.
        self._own_stores: WeakSet[Store] = WeakSet()
        self._handlers: dict[str, Handler[..., Any]] = {}
        #: Which of the handlers are Tasks.
        self.task_paths: set[str] = set()
        self._has_all_tasks = False
        super().__init__(self.own_store, who="django")
        self._swaps = _all_swaps
        self.around(self._around)

    def __repr__(self) -> str:
        """The entry of TASKS."""
        return f"<client of TASKS[{self.alias!r}]>"

    # ------------------------------------------------------------------------------------------------ store

    @property
    def _own(self) -> BoundStore:
        return self._store_of(store_now(self.alias).url)

    @_own.setter
    def _own(self, bound: BoundStore) -> None:
        """It is there already."""

    def _store_of(self, url: str) -> BoundStore:
        if url == MEMORY and not self._is_memory_kept():
            self._stores.pop(MEMORY, None)
            self._is_memory_kept = lambda: True
        found = self._stores.get(url)
        if found is None:
            found = self._stores.setdefault(url, BoundStore(store_for(url)))
            self._own_stores.add(found.store)
        return found

    @property
    def own_store(self) -> Store:
        """The store of the settings, also where a test must not use it."""
        return self._own.store

    @property
    def is_swapped(self) -> bool:
        """Whether `using(store)` holds here, such as in the test kit."""
        return bool(self._swaps) and swapped(self._swaps) is not None

    @property
    def _bound(self) -> BoundStore:
        found = swapped(self._swaps) if self._swaps else None
        if found is not None:
            return found
        now = store_now(self.alias)
        if now.refusal is not None:
            raise ImproperlyConfigured(now.refusal)
        return self._store_of(now.url)

    def _is_own(self, recorder: UsageRecorder) -> bool:
        return recorder in self._own_stores

    async def close(self) -> None:
        """Close the store, and all stores that were used before."""
        for bound in (*self._stores.values(), *filter(None, [swapped(self._swaps)])):
            bound.is_open = False
            await bound.store.close()

    def empty_for_tests(self) -> None:
        """Migrate the store of the tests and remove all jobs, unless the store is not one for tests."""
        now, store = store_now(self.alias), self.own_store
        if now.refusal is not None:
            return
        if now.url != MEMORY:
            self.sync(_migrated_and_empty(store))
        # A new store object has stated no recurrences yet.
        del self._stores[now.url]

    def keep_memory_while(self, is_kept: Callable[[], bool]) -> None:
        """Let a store in memory, which has no transactions, end with the rollback of a TestCase."""
        self._is_memory_kept = is_kept

    def forget_stores(self) -> None:
        """Close all stores, and find the Tasks again: the settings have changed."""
        self.sync.close()
        self._stores.clear()
        for path in self.task_paths:
            del self._handlers[path]
        self.task_paths.clear()
        self._has_all_tasks = False

    # ------------------------------------------------------------------------------------------------ enqueue

    def send(self, drafts: Sequence[Draft[Any]]) -> list[str]:
        """Enqueue drafts as Tasks are enqueued: in the open transaction, or when it commits."""
        backend = task_backends[self.alias]
        if backend.mode_now() == "on_commit":  # the store gives no ids then
            drafts = [_with_id(draft, self.store) for draft in drafts]
        sent = backend.send(drafts)
        return [str(draft.options.id) for draft in drafts] if sent is None else [one.id for one in sent]

    def not_yet_enqueued(self) -> str:
        """How many tasks wait for a commit. A `TestCase` of Django never commits."""
        count = waiting_for_commit()
        waits = "1 task waits" if count == 1 else f"{count} tasks wait"
        advice = "use a TransactionTestCase, or captureOnCommitCallbacks(execute=True)"
        return f"\n{waits} for the commit of a transaction: {advice}" if count else ""

    # ------------------------------------------------------------------------------------------------ handlers

    @property
    def handlers(self) -> dict[str, Handler[..., Any]]:
        """Tasks, and what else was defined; with the store of `using`, those of all entries of TASKS."""
        if not self.is_swapped:
            return self.found_handlers()
        others = [one for one in list(_clients.values()) if one is not self]
        return {name: one for client in (*others, self) for name, one in client.found_handlers().items()}

    @handlers.setter
    def handlers(self, handlers: dict[str, Handler[..., Any]]) -> None:
        """They are there already."""

    @property
    def defined_handlers(self) -> dict[str, Handler[..., Any]]:
        """The handlers so far. To import modules of tasks while one of them defines a handler would go wrong."""
        return self._handlers

    def find_tasks_again(self) -> None:
        """Look for new Tasks when the handlers are read next."""
        self._has_all_tasks = False

    def found_handlers(self) -> dict[str, Handler[..., Any]]:
        """The handlers of this entry of TASKS, after a search for Tasks if it is due."""
        if not self._has_all_tasks and apps.ready and self._is_in_settings():
            tasks = find_tasks()  # before the lock: imports have locks of their own
            with _lock:
                self.task_paths |= add_handlers(task_backends[self.alias], tasks, self._handlers)
            self._has_all_tasks = True
        return self._handlers

    def _is_in_settings(self) -> bool:
        """Whether TASKS has this entry: a test may have put another backend in its place."""
        return self.alias in task_backends.settings and getattr(task_backends[self.alias], "client", None) is self

    def _around(self, context: Context) -> Iterator[None]:
        """Around a run of a handler that is no Task, as around one of a Task."""
        if context.job.name in self.task_paths or is_in_loop():
            yield
            return
        with as_in_request():
            yield


def client_of(alias: str) -> DjangoClient:
    """The client of an entry of TASKS."""
    found = _clients.get(alias)
    if found is None:
        made = DjangoClient(alias)
        with _lock:
            found = _clients.setdefault(alias, made)
    return found


def _with_id(draft: Draft[Any], store: Store) -> Draft[Any]:
    id = draft.options.id or store.new_id()
    return structs.replace(draft, options=structs.replace(draft.options, id=id))


async def _migrated_and_empty(store: Store) -> None:
    from jobmill.testing.stores import prepare

    try:
        await prepare(store)
    finally:
        await store.close()


def forget_stores(setting: str, **_: Any) -> None:
    """Close all stores when a test changes the settings that they were made from."""
    if setting in ("TASKS", "DATABASES"):
        forget_found()
        for one in _clients.values():
            one.forget_stores()


def close_clients(connection: Any, **_: Any) -> None:
    """Close all stores where Django connects to no database, as it does to create, copy or drop one of the tests.

    PostgreSQL refuses that while somebody is connected. They open again with their next call.
    """
    if connection.alias == NO_DB_ALIAS:
        for one in _clients.values():
            one.sync.close()
