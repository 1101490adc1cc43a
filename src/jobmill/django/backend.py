"""The backend: Django's Tasks as jobs of Jobmill. Django makes a backend for each thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from jobmill.client.client import Client
from jobmill.core.durations import to_datetime
from jobmill.core.job import Job
from jobmill.django import checks
from jobmill.django.client import DjangoClient, client_of
from jobmill.django.database import is_same_database, url_of_database, uses_psycopg3
from jobmill.django.discovery import check_importable, task_named
from jobmill.django.interface import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from jobmill.django.on_commit import SendOnCommit
from jobmill.django.results import new_result, result_of
from jobmill.django.store_now import store_now
from jobmill.django.task import (
    ERROR_OPTIONS,
    JOB_OPTIONS,
    JobmillTask,
    check_arguments,
    for_job,
    from_arguments,
    normalized,
    options_of,
)
from jobmill.errors import JobNotFound, SchemaTooOld
from jobmill.handlers.draft import Draft
from jobmill.handlers.enqueued import Enqueued
from jobmill.store import EnqueuesWithin

PRIORITY_BASE: Final = 100
#: Names the entry of TASKS whose client `jobmill.django.worker` has.
BACKEND_VARIABLE: Final = "JOBMILL_DJANGO_BACKEND"


class JobmillBackend(BaseTaskBackend):
    """`TASKS = {"default": {"BACKEND": "jobmill.django.JobmillBackend", "OPTIONS": {...}}}`."""

    task_class = JobmillTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        #: The queues in the order of the settings, in which workers try them.
        self.queue_names = tuple(params.get("QUEUES", ("default",)))
        self.database: str = self.options.get("database", "default")
        self._given = {name: self.options[name] for name in (*JOB_OPTIONS, *ERROR_OPTIONS) if name in self.options}
        self._base: int = self.options.get("priority_base", PRIORITY_BASE)

    # ------------------------------------------------------------------------------------------------ the store

    @property
    def url(self) -> str:
        """The URL of the store."""
        return store_now(self.alias).url

    @property
    def client(self) -> DjangoClient:
        """The client of this process."""
        return client_of(self.alias)

    @property
    def is_in_database(self) -> bool:
        """Whether the jobs are in the database of Django."""
        return is_same_database(self.url, url_of_database(self.database))

    @property
    def can_join(self) -> bool:
        """Whether jobs can be enqueued in transactions of Django."""
        vendor = connections[self.database].vendor
        is_known = vendor == "sqlite" or (vendor == "postgresql" and uses_psycopg3())
        return is_known and isinstance(self.client.own_store, EnqueuesWithin)

    @property
    def transaction(self) -> str:
        """The mode: as given, else "join" where jobs are in the database of Django, else "on_commit"."""
        if given := self.options.get("transaction"):
            return str(given)
        found = store_now(self.alias)
        if found.mode is None:
            found.mode = "join" if self.is_in_database and self.can_join else "on_commit"
        return found.mode

    @property
    def migrate_command(self) -> str:
        """The command that creates or updates the tables of this store."""
        if self.is_in_database:
            return "manage.py migrate" + ("" if self.database == "default" else f" --database {self.database}")
        return "manage.py jobmill migrate" + self.backend_argument

    @property
    def backend_argument(self) -> str:
        """What a command of `manage.py jobmill` needs to use this store."""
        return "" if self.alias == "default" else f" --backend {self.alias}"

    @contextlib.contextmanager
    def remedy_of_django(self) -> Iterator[None]:
        """Name the command of Django: `jobmill migrate` does not know TASKS, and would migrate another store."""
        try:
            yield
        except SchemaTooOld as error:
            where = f"the {self.client.store.name} store of TASKS[{self.alias!r}]"
            raise SchemaTooOld(
                f"the tables of Jobmill are missing or old in {where}; run {self.migrate_command}"
            ) from error

    # ------------------------------------------------------------------------------------------------ enqueue

    def validate_task(self, task: Any) -> None:
        """Refuse a task that this backend cannot run; where its queue is the reason, say which setting to change."""
        try:
            super().validate_task(task)
        except InvalidTask as error:
            if not self.queues or task.queue_name in self.queues:
                raise
            known = ", ".join(map(repr, self.queue_names))
            advice = f"add {task.queue_name!r} to QUEUES of TASKS[{self.alias!r}], which has {known}"
            raise InvalidTask(f"{error} {task.module_path}: {advice}") from None

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a Task, in the transaction that is open, or when it commits, or at once."""
        with self.remedy_of_django():
            draft, result = self._prepared(task, args, kwargs)
            sent = self.send([draft])
            if sent is not None:
                result = self._enqueued(result, sent[0], self.client)
        task_enqueued.send(type(self), task_result=result)
        return result

    def send(self, drafts: Sequence[Draft[Any]]) -> list[Enqueued[Any]] | None:
        """Enqueue drafts in the transaction that is open, or at once; None if they wait for the commit."""
        mode, sync, connection = self.mode_now(), self.client.sync, connections[self.database]
        if mode == "none":
            return sync.enqueue_many(drafts)
        if mode == "on_commit":
            transaction.on_commit(SendOnCommit(self, drafts), using=self.database)
            return None
        connection.validate_no_broken_transaction()
        return sync.enqueue_many(drafts, within=connection.connection)

    def mode_now(self) -> str:
        """The mode for what is enqueued now: "none" where no transaction is open."""
        mode = self.transaction
        if mode == "none" or not _is_in_transaction(connections[self.database]):
            return "none"
        # For the time of a test, which may roll back, the store is another one, or in memory.
        return "on_commit" if self.client.is_swapped or self.client.store.name == "memory" else mode

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a Task from async code.

        Whether a transaction is open is known only in the thread of the database connection, so the call goes there.
        """
        if self.transaction != "none":
            return await super().aenqueue(task, args, kwargs)
        client = self.client
        draft, result = self._prepared(task, args, kwargs)
        with self.remedy_of_django():
            (enqueued,) = await client.enqueue_many([draft])
        if enqueued.status == "created":
            result = self._enqueued(result, enqueued, client)
        else:
            result = await self._aresult_or(result, enqueued.id)
        await task_enqueued.asend(type(self), task_result=result)
        return result

    def _prepared(self, task: Any, args: Any, kwargs: Any) -> tuple[Draft[Any], Any]:
        """A new job with an id, and its result."""
        id = self.client.store.new_id()
        draft = self.draft(task, args, kwargs, id=id)
        given = msgspec.json.decode(draft.payload_json)
        return draft, new_result(task, id, given["args"], given["kwargs"], self.alias, timezone.now())

    def draft(self, task: Any, args: Any, kwargs: Any, **more: Any) -> Draft[Any]:
        """A Task as a draft. It waits for other drafts whose results are among its arguments."""
        self.validate_task(task)
        check_importable(task)
        check_arguments(task, args, kwargs)
        args, kwargs = normalized(list(args)), normalized(kwargs)
        return self.client.draft(
            task.module_path,
            {"args": args, "kwargs": kwargs},
            queue=task.queue_name,
            priority=self.to_priority(task.priority),
            due_at=self._due_at(task.run_after),
            **for_job(options := self.options_for(task)),
            **from_arguments(task, options, args, kwargs),
            **more,
        )

    def _due_at(self, at: Any) -> Any:
        """The time as the store takes it. The clock of a test kit may be another: there the delay is the same."""
        at = timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at
        if at is None or not self.client.is_swapped:
            return at
        return at + (to_datetime(self.client.store.now()) - timezone.now())

    def _enqueued(self, result: Any, enqueued: Enqueued[Any], client: Client) -> Any:
        """The result of the new job, by the clock of the store; or of the live job that has the same unique key."""
        if enqueued.status == "created":
            object.__setattr__(result, "enqueued_at", to_datetime(client.store.now()))
            return result
        try:
            return self.get_result(enqueued.id)
        except TaskResultDoesNotExist:  # it belongs to this transaction, which only this connection can see
            object.__setattr__(result, "id", enqueued.id)
            return result

    async def _aresult_or(self, result: Any, id: str) -> Any:
        try:
            return await self.aget_result(id)
        except TaskResultDoesNotExist:
            object.__setattr__(result, "id", id)
            return result

    def options_for(self, task: Any) -> dict[str, Any]:
        """The options of Jobmill for a task: its own ones, then those in the settings for its path, then for all."""
        in_settings: dict[str, Any] = self.options.get("tasks", {}).get(task.module_path, {})
        return self._given | in_settings | options_of(task)

    def to_priority(self, priority: int) -> int:
        """Jobmill runs jobs with smaller numbers first, Django tasks with larger ones."""
        return self._base - priority

    # ------------------------------------------------------------------------------------------------ results

    def get_result(self, result_id: str) -> Any:
        """The result of the job with this id."""
        try:
            with self.remedy_of_django():
                return self.result_of(self.client.sync.get(result_id))
        except JobNotFound as error:
            raise TaskResultDoesNotExist(result_id) from error

    async def aget_result(self, result_id: str) -> Any:
        """The result of the job with this id."""
        try:
            with self.remedy_of_django():
                return self.result_of(await self.client.get(result_id))
        except JobNotFound as error:
            raise TaskResultDoesNotExist(result_id) from error

    def result_of(self, job: Job, task: Any = None) -> Any:
        """A job of a Task as a TaskResult; SuspiciousOperation if its name is not the path of a Task."""
        return result_of(job, task_named(job.name) if task is None else task, self.alias, self._base)

    def check(self, **_: Any) -> Iterator[Any]:
        """The system checks that need no database."""
        yield from checks.check_backend(self)


def _is_in_transaction(connection: Any) -> bool:
    """Whether the connection has a transaction that is not committed by each statement."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def backends() -> Iterator[JobmillBackend]:
    """The backends of TASKS that are Jobmill's."""
    for alias in task_backends.settings:
        with contextlib.suppress(ImproperlyConfigured):  # another backend, about which Django complains itself
            if isinstance(found := task_backends[alias], JobmillBackend):
                yield found


def enqueue_many(drafts: Iterable[Draft[Any]], alias: str = "default") -> None:
    """Enqueue drafts of Tasks, and those that they wait for, in one call, and in the transaction that is open.

    There are no results and no signals: in a transaction, the jobs may exist only when it commits.
    """
    backend = _backend(alias)
    with backend.remedy_of_django():
        backend.send(tuple(drafts))


def client(alias: str = "default") -> DjangoClient:
    """The client of a backend, with all Tasks as its handlers: `client().sync.tick()` runs what is due.

    It is the same one for the whole process, so a module may keep it. During tests it uses the store of the tests.
    """
    backend = _backend(alias)
    backend.client.find_tasks_again()
    return backend.client


def _backend(alias: str) -> JobmillBackend:
    backend = task_backends[alias]
    if not isinstance(backend, JobmillBackend):
        raise ImproperlyConfigured(f"TASKS[{alias!r}] is not a backend of Jobmill")
    return backend
