"""Runs Tasks as handlers of Jobmill: with Django's signals, its language, and its database connections."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone, translation

from jobmill.core.events import Event
from jobmill.django.interface import TaskContext, normalize_json, task_backends, task_finished, task_started
from jobmill.django.results import succeeded
from jobmill.django.task import for_job, positional_names, recurring_tasks
from jobmill.errors import JobNotFound
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Handler
from jobmill.handlers.options import error_types

if TYPE_CHECKING:
    from jobmill.django.backend import JobmillBackend


class ResultNotJSON(TypeError):
    """A task returned a value that is not JSON. It is not run again, because that would do all its work once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobmillContext(TaskContext):
    """What a task with `takes_context=True` gets: Django's context, and the context of Jobmill."""

    jobmill: Context


def add_handlers(backend: JobmillBackend, tasks: dict[str, Any], handlers: dict[str, Handler[..., Any]]) -> set[str]:
    """Make each of these Tasks a handler, if it is one of this backend and new; the paths of the new ones."""
    new = {path: task for path, task in tasks.items() if path not in handlers and _is_of(task, backend)}
    handlers |= {path: _task_handler(backend, task, path) for path, task in new.items()}
    return set(new)


def _is_of(task: Any, backend: JobmillBackend) -> bool:
    """Whether a worker of this backend runs it: also where only `using(backend=...)` brings it to this store."""
    if task.backend == backend.alias:
        return True
    own = task_backends[task.backend]
    return not (isinstance(own, type(backend)) and own.url == backend.url)


def _task_handler(backend: JobmillBackend, task: Any, path: str) -> Handler[..., Any]:
    recurs = recurring_tasks.get(path) if task.backend == backend.alias else None
    options = backend.options_for(task)
    given = {
        "name": path,
        "queue": task.queue_name,
        "priority": backend.to_priority(task.priority),
        "retry_on": options.get("retry_on", ()),
        "fail_on": (ResultNotJSON, *error_types(options.get("fail_on", ()), "fail_on")),
        **for_job(options),
        **({} if recurs is None else recurs.options),
    }
    handler: Handler[..., Any] = Handler(backend.client, _handler(backend, task), given)
    handler.positional = positional_names(task)
    return handler


@contextlib.contextmanager
def as_in_request() -> Iterator[None]:
    """What Django does around a request: database connections that are broken or too old are closed."""
    close_old_connections()
    reset_queries()
    try:
        with translation.override(settings.LANGUAGE_CODE):
            yield
    finally:
        close_old_connections()


def _handler(backend: JobmillBackend, task: Any) -> Callable[..., Any]:
    def started(context: Context) -> tuple[Any, tuple[Any, ...]]:
        result = backend.result_of(context.job, task)
        return result, (JobmillContext(task_result=result, jobmill=context),) if task.takes_context else ()

    def run(context: Context, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
        with as_in_request():
            result, first = started(context)
            task_started.send_robust(type(backend), task_result=result)
            value = _plain(task.func(*first, *(args or ()), **(kwargs or {})))
            if not context.cancelled:  # else the value does not count: the task was cancelled, or it runs again
                task_finished.send_robust(type(backend), task_result=succeeded(result, value, timezone.now()))
            return value

    async def arun(context: Context, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
        # The database calls of each run have a thread of their own, as those of a request have in Django.
        async with ThreadSensitiveContext():
            try:
                with translation.override(settings.LANGUAGE_CODE):
                    result, first = started(context)
                    await task_started.asend_robust(type(backend), task_result=result)
                    value = _plain(await task.func(*first, *(args or ()), **(kwargs or {})))
                    done = succeeded(result, value, timezone.now())
                    await task_finished.asend_robust(type(backend), task_result=done)
                    return value
            finally:
                await sync_to_async(connections.close_all)()

    return arun if inspect.iscoroutinefunction(task.func) else run


def _plain(value: Any) -> Any:
    try:
        return normalize_json(value)
    except TypeError as error:
        raise ResultNotJSON(f"the return value of the task is not JSON: {error}") from error


def announce_failures(backend: JobmillBackend) -> None:
    """Send `task_finished` for jobs that failed: only their settlement says that no attempt is left."""

    async def on_failed(event: Event) -> None:
        if event.name not in backend.client.task_paths:  # it is no Task: the client may have other handlers
            return
        try:
            job = await backend.client.get(event.job_id)
        except JobNotFound:  # `keep_failed` is 0
            return
        if job.state == "failed":
            async with ThreadSensitiveContext():
                result = await sync_to_async(backend.result_of)(job)
                await task_finished.asend_robust(type(backend), task_result=result)
                await sync_to_async(connections.close_all)()

    backend.client.on("failed")(on_failed)
