"""Celery's app: makes tasks of functions, and handlers of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from jobmill.client.client import Client
from jobmill.compat.celery.binding import SHARED, Binding
from jobmill.compat.celery.options import TaskOptions
from jobmill.compat.celery.result import AsyncResult
from jobmill.compat.celery.task import Task
from jobmill.errors import InvalidValue

P = ParamSpec("P")
R = TypeVar("R")


class PlainDecorator(Protocol):
    """Makes a task of a function."""

    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]:
        """The task."""


class BoundDecorator(Protocol):
    """Makes a task of a function that takes the task first."""

    def __call__(self, fn: Callable[Concatenate[Any, P], R], /) -> Task[P, R]:
        """The task."""


class App:
    """What `Celery(...)` was: `app = App(jobs)`, with `@app.task` and `app.send_task`.

    A smaller priority runs first, as in Celery on Redis. With `max_priority` a larger one does, as on RabbitMQ.
    """

    def __init__(self, jobs: Client | None = None, *, max_priority: int | None = None, shared: bool = False) -> None:
        self.binding = SHARED if shared else Binding()
        self.tasks: dict[str, Task[..., Any]] = {}
        if jobs is not None:
            self.bind(jobs, max_priority=max_priority)

    def bind(self, jobs: Client, *, max_priority: int | None = None) -> None:
        """Make all tasks handlers of a client: those that are defined, and those that will be."""
        was_bound = self.binding.is_bound
        self.binding.bind(jobs, max_priority)
        for task in () if was_bound else self.tasks.values():
            task.register(jobs)

    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, *, bind: Literal[True], **options: Unpack[TaskOptions]) -> BoundDecorator: ...
    @overload
    def task(self, *, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> PlainDecorator: ...
    def task(self, *fn: Callable[..., Any], **options: Any) -> Any:
        """Make a function a task: `@shared_task`, or `@shared_task(bind=True, …)` with options."""
        if not fn:
            return lambda function: self._add(Task(self.binding, function, dict(options)))
        return self._add(Task(self.binding, fn[0], {}))

    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        if self.binding.is_bound:
            task.register(self.binding.client)
        self.tasks[task.name] = task
        return task

    def send_task(
        self, name: str, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[Any]:
        """Enqueue a job of a task by its name; the task must be known here."""
        if name not in self.tasks:
            raise InvalidValue("name", f"a task that is defined here ({', '.join(self.tasks) or 'none'})", name)
        return self.tasks[name].apply_async(args, kwargs, **options)
