"""The interface of Django's Tasks: from Django 6, or from the backport `django-tasks` for Django 5.2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobmill.errors import MissingExtra


def _interface() -> str:
    for name in ("django.tasks", "django_tasks"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("django", "django.tasks", "django_tasks"):
                raise
        else:
            return name
    raise MissingExtra(
        "jobmill.django needs Django 6, or Django 5.2 and its backport: pip install 'django-tasks>=0.12'"
    )


#: The package that has the interface: "django.tasks" or "django_tasks".
PACKAGE = _interface()


def _of(module: str, *names: str) -> Any:
    """What has the first of these names that the module knows: the backport has other names for two errors."""
    found = import_module(f"{PACKAGE}{module}")
    return next(getattr(found, name) for name in names if hasattr(found, name))


task_backends: Any = _of("", "task_backends")
BaseTaskBackend: Any = _of(".backends.base", "BaseTaskBackend")
TaskContext: Any = _of(".base", "TaskContext")
TaskError: Any = _of(".base", "TaskError")
TaskResult: Any = _of(".base", "TaskResult")
TaskResultStatus: Any = _of(".base", "TaskResultStatus")
InvalidTask: Any = _of(".exceptions", "InvalidTask", "InvalidTaskError")
TaskResultDoesNotExist: Any = _of(".exceptions", "TaskResultDoesNotExist")
task_enqueued: Any = _of(".signals", "task_enqueued")
task_started: Any = _of(".signals", "task_started")
task_finished: Any = _of(".signals", "task_finished")

if TYPE_CHECKING:
    # Django itself has no types, and a type checker does not know which of the two packages is there.
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Task:
        """What tasks of both packages have."""

        func: Callable[..., Any]
        priority: int = 0
        backend: str = "default"
        queue_name: str = "default"
        run_after: datetime | None = None
        takes_context: bool = False

        def __post_init__(self) -> None: ...
        @property
        def name(self) -> str: ...
        @property
        def module_path(self) -> str: ...
        def using(self, **changes: Any) -> Any: ...
        def get_backend(self) -> Any: ...
        def get_result(self, result_id: str) -> Any: ...
        async def aget_result(self, result_id: str) -> Any: ...
        def call(self, *args: Any, **kwargs: Any) -> Any: ...
        async def acall(self, *args: Any, **kwargs: Any) -> Any: ...
else:
    Task = _of(".base", "Task")

if PACKAGE == "django.tasks":
    normalize_json: Any = import_module("django.utils.json").normalize_json
else:
    normalize_json = _of(".utils", "normalize_json")
