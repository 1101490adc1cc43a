"""The interface of Django's Tasks: from Django 6, or from the backport `django-tasks` for Django 5.2."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
Task: Any = _of(".base", "Task")
TaskContext: Any = _of(".base", "TaskContext")
TaskError: Any = _of(".base", "TaskError")
TaskResult: Any = _of(".base", "TaskResult")
TaskResultStatus: Any = _of(".base", "TaskResultStatus")
InvalidTask: Any = _of(".exceptions", "InvalidTask", "InvalidTaskError")
TaskResultDoesNotExist: Any = _of(".exceptions", "TaskResultDoesNotExist")
task_enqueued: Any = _of(".signals", "task_enqueued")
task_started: Any = _of(".signals", "task_started")
task_finished: Any = _of(".signals", "task_finished")

if PACKAGE == "django.tasks":
    normalize_json: Any = import_module("django.utils.json").normalize_json
else:
    normalize_json = _of(".utils", "normalize_json")
