"""Tasks with options of Jobmill, and recurring tasks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import Struct

from jobmill.core.limits import check_tenant, check_unique_key
from jobmill.core.retry import DEFAULT_BACKOFF
from jobmill.core.unique_policy import WhenLive
from jobmill.django.interface import InvalidTask, Task, task_backends
from jobmill.errors import InvalidValue
from jobmill.handlers.options import POLICIES, declared_options, enqueue_options, error_types, handler_options

#: Options of jobs that OPTIONS of a backend can have for all its tasks, and a task for itself.
JOB_OPTIONS: Final = ("max_attempts", "max_crashes", "backoff", "timeout", "keep_succeeded", "keep_failed")
#: Options that jobs do not store: a worker has those of the task as it is defined, or as the settings name it.
ERROR_OPTIONS: Final = ("retry_on", "fail_on")
#: Options of a task only: a text, or a function that makes one from the arguments of the task.
FROM_ARGUMENTS: Final = ("unique_key", "tenant")
TASK_OPTIONS: Final = (*JOB_OPTIONS, *ERROR_OPTIONS, *FROM_ARGUMENTS, *POLICIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobmillTask(Task):
    """A Task with options of Jobmill. None means the option of the backend, else the default of Jobmill."""

    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: Any = None
    timeout: Any = None
    keep_succeeded: Any = None
    keep_failed: Any = None
    #: A class of exceptions, or several: only these are retried, or these are not.
    retry_on: Any = None
    fail_on: Any = None
    #: A text, or a function that gets the arguments of the task and returns one.
    unique_key: str | Callable[..., str] | None = None
    tenant: str | Callable[..., str] | None = None
    #: What happens if the unique key is taken.
    unique_for: Any = None
    debounce: Any = None
    when_live: WhenLive | None = None

    def __post_init__(self) -> None:
        """Refuse wrong options where the task is defined."""
        Task.__post_init__(self)  # super() does not work in a class that `slots=True` makes again
        try:
            check_options(options_of(self))
        except InvalidValue as error:
            raise InvalidTask(str(error)) from error

    def using(self, **changes: Any) -> JobmillTask:
        """A task with other values: those of Django's `using`, and the options of Jobmill that a job stores."""
        for name in ERROR_OPTIONS:
            if name in changes:
                raise TypeError(f"{name} is an option of @task only: a worker has it from there")
        own = {name: changes.pop(name) for name in TASK_OPTIONS if name in changes}
        changed: JobmillTask = Task.using(self, **changes)
        return replace(changed, **own) if own else changed


def task(function: Callable[..., Any] | None = None, **given: Any) -> Any:
    """Django's `@task`, which also takes the options of Jobmill on every version of Django.

    If another backend is configured, such as Django's ImmediateBackend in tests, the options of Jobmill have no effect.
    """
    if "run_after" in given:
        raise TypeError("run_after is not an option of @task: use .using(run_after=...)")

    def decorate(function: Callable[..., Any]) -> Any:
        backend = given.get("backend", "default")
        kind = task_backends[backend].task_class
        known = given if issubclass(kind, JobmillTask) else _without(given, TASK_OPTIONS)
        return kind(func=function, **{"run_after": None, "backend": backend, **DEFAULTS, **known})

    return decorate if function is None else decorate(function)


# Django 6.0 has no defaults for these.
DEFAULTS: Final = {"priority": 0, "queue_name": "default", "takes_context": False}


def _without(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


def options_of(task: Any) -> dict[str, Any]:
    """The options of Jobmill that a task has itself."""
    if not isinstance(task, JobmillTask):
        return {}
    return {name: value for name in TASK_OPTIONS if (value := getattr(task, name)) is not None}


def for_job(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a job of Jobmill stores, as it takes them."""
    given = {name: options[name] for name in JOB_OPTIONS if name in options}
    if given.get("backoff") == "exponential":
        given["backoff"] = DEFAULT_BACKOFF
    return given


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidValue if an option of a task is wrong."""
    for name in options:
        if name not in TASK_OPTIONS:
            raise InvalidValue(name, "one of the options " + ", ".join(TASK_OPTIONS), options[name])
    if callable(options.get("backoff")):
        raise InvalidValue("backoff", "a Backoff, a dict or a duration", options["backoff"])
    handler_options(for_job(options))
    for name in ERROR_OPTIONS:
        error_types(options.get(name, ()), name)
    for name, check in (("unique_key", check_unique_key), ("tenant", check_tenant)):
        if options.get(name) is not None and not callable(options[name]):
            check(options[name], name)
    key = {} if options.get("unique_key") is None else {"unique_key": "any"}
    enqueue_options({name: options[name] for name in POLICIES if name in options} | key)


# ---------------------------------------------------------------------------------------------------- arguments


def check_arguments(task: Any, args: Any, kwargs: Any) -> None:
    """Raise TypeError if the function of the task does not take these: here, and not in a worker after all attempts."""
    signature = _signature(task.func, task.takes_context)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path}{signature}: {error}") from None


@functools.cache  # tasks are functions at the level of a module
def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    # A decorator may take other arguments than the function that it wraps.
    signature = inspect.signature(function, follow_wrapped=False)
    parameters = list(signature.parameters.values())
    has_context = takes_context and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
    own = parameters[1:] if has_context else parameters
    return inspect.Signature(own)


def from_arguments(task: Any, options: Mapping[str, Any], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The options that functions make from the arguments of a task, those that are texts, and policies of its key."""
    given = {name: options[name] for name in (*FROM_ARGUMENTS, *POLICIES) if name in options}
    for name, value in given.items():
        if callable(value):
            try:
                inspect.signature(value).bind(*args, **kwargs)
            except TypeError as error:
                advice = "its function gets the arguments of the task"
                raise TypeError(f"{name} of {task.module_path}: {error}; {advice}") from None
            given[name] = value(*args, **kwargs)
    return given


# ---------------------------------------------------------------------------------------------------- recurring


class Recurring(Struct, frozen=True):
    """When a task recurs, as options of a handler."""

    options: dict[str, Any]


#: By the path of the task.
recurring_tasks: dict[str, Recurring] = {}


def recurring(cron: str | None = None, *, every: Any = None, timezone: str = "UTC") -> Callable[[Any], Any]:
    """Let a Task recur, above its `@task`: `@recurring("0 3 * * *", timezone="Europe/Berlin")` or `every="10m"`.

    Workers make the recurring job when they start, and end it when the task recurs no longer. The task is called
    without arguments.
    """
    given = {"cron": cron, "every": every, "timezone": timezone}
    options = {name: value for name, value in given.items() if value is not None}

    def decorate(task: Any) -> Any:
        if not isinstance(task, Task):
            raise InvalidTask("@recurring is for a Task: write it above @task")
        try:
            if declared_options(options, task.module_path, handler_options({})) is None:
                raise InvalidValue("recurring", "a cron expression or every=", None)
        except InvalidValue as error:
            raise InvalidTask(str(error)) from error
        recurring_tasks[task.module_path] = Recurring(options)
        return task

    return decorate
