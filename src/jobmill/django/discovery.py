"""Finds Tasks by their paths. Only the `tasks` modules of installed apps are imported, never what a job names."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import Any

from django.apps import apps
from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import autodiscover_modules

from jobmill.django.interface import InvalidTask, Task


def _import_tasks() -> None:
    """Import the `tasks` modules of installed apps; of a package `tasks`, all modules but tests."""
    autodiscover_modules("tasks")
    for app in apps.get_app_configs():
        package = sys.modules.get(f"{app.name}.tasks")
        for found in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{app.name}.tasks."):
            if not found.name.rpartition(".")[2].startswith(("test", "conftest")):
                import_module(found.name)


def find_tasks() -> dict[str, Any]:
    """All Tasks by path: of the `tasks` modules of the installed apps, and of all modules that are imported now."""
    _import_tasks()
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            # isinstance() would evaluate lazy objects of Django.
            if issubclass(type(value), Task) and value.module_path == f"{name}.{attribute}":
                found[value.module_path] = value
    return found


def task_named(path: str) -> Any:
    """The Task with this path, which a job names; SuspiciousOperation if there is none."""
    found = _imported(path)
    if found is None:
        _import_tasks()
        found = _imported(path)
    if found is None:
        advice = "tasks are found in modules named tasks of installed apps, and in modules that are imported"
        raise SuspiciousOperation(f"{path!r} is not the path of a Task: {advice}")
    return found


def check_importable(task: Any) -> None:
    """Raise InvalidTask if a worker could not find this Task by its path."""
    found = _imported(task.module_path)
    if found is None or found.func is not task.func or task.func.__module__ == "__main__":
        raise InvalidTask(f"a worker cannot find this task: {task.module_path} must be the Task, in an imported module")


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    value: Any = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    return value if issubclass(type(value), Task) and value.module_path == path else None
