"""Tasks with options of Jobmill, and recurring tasks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, overload

from msgspec import Struct

from jobmill.core.limits import check_lane, check_tenant, check_unique_key
from jobmill.core.retry import exponential
from jobmill.core.unique_policy import WhenLive
from jobmill.django.interface import InvalidTask, Task, normalize_json, task_backends
from jobmill.errors import InvalidValue
from jobmill.handlers.draft import Draft
from jobmill.handlers.options import POLICIES, declared_options, enqueue_options, error_types, handler_options
from jobmill.handlers.placeholders import has_placeholder

#: Options of jobs that OPTIONS of a backend can have for all its tasks, and a task for itself.
JOB_OPTIONS: Final = ("max_attempts", "max_crashes", "backoff", "timeout", "keep_succeeded", "keep_failed")
#: Options that jobs do not store: a worker has those of the task as it is defined, or as the settings name it.
ERROR_OPTIONS: Final = ("retry_on", "fail_on")
#: Options of a task only: a text, or a function that makes one from the arguments of the task.
FROM_ARGUMENTS: Final = ("unique_key", "tenant", "lane")
#: The default of tasks: the usual delays, each shortened at random. Tasks that collided do not meet again.
TASK_BACKOFF: Final = exponential("1s", cap="1h", jitter=0.5)
TASK_OPTIONS: Final = (*JOB_OPTIONS, *ERROR_OPTIONS, *FROM_ARGUMENTS, *POLICIES)


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobmillTask(Task, Generic[P]):
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
    lane: str | Callable[..., str | None] | None = None
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

    if TYPE_CHECKING:  # Django's own, with the arguments of the function

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def using(self, **changes: Any) -> JobmillTask[P]:
        """A task with other values: those of Django's `using`, and the options of Jobmill that a job stores."""
        for name in ERROR_OPTIONS:
            if name in changes:
                raise TypeError(f"{name} is an option of @task only: a worker has it from there")
        check_names(type(self), changes)
        if isinstance(changes.get("run_after"), timedelta):
            raise TypeError("run_after is a time, not a duration: run_after=timezone.now() + timedelta(...)")
        own = {name: changes.pop(name) for name in TASK_OPTIONS if name in changes}
        changed: JobmillTask[P] = Task.using(self, **changes)
        return replace(changed, **own) if own else changed

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft[Any]:
        """The task as a value, for `enqueue_many`. Its `result` can be an argument of another task."""
        draft: Draft[Any] = self.get_backend().draft(self, args, kwargs)
        return draft


@overload
def task(function: Callable[P, Any], **given: Any) -> JobmillTask[P]: ...
@overload
def task(
    *, takes_context: Literal[True], **given: Any
) -> Callable[[Callable[Concatenate[Any, P], Any]], JobmillTask[P]]: ...
@overload
def task(*, takes_context: Literal[False] = False, **given: Any) -> Callable[[Callable[P, Any]], JobmillTask[P]]: ...
def task(function: Callable[..., Any] | None = None, **given: Any) -> Any:
    """Django's `@task`, which also takes the options of Jobmill on every version of Django.

    If another backend is configured, such as Django's ImmediateBackend in tests, the options of Jobmill have no effect.
    """
    if "run_after" in given:
        raise TypeError("run_after is not an option of @task: use .using(run_after=...)")

    def decorate(function: Callable[..., Any]) -> Any:
        backend = given.get("backend", "default")
        kind = task_backends[backend].task_class
        check_names(kind, given)
        known = given if issubclass(kind, JobmillTask) else _without(given, TASK_OPTIONS)
        return kind(func=function, **{"run_after": None, "backend": backend, **DEFAULTS, **known})

    return decorate if function is None else decorate(function)


# Django 6.0 has no defaults for these.
DEFAULTS: Final = {"priority": 0, "queue_name": "default", "takes_context": False}


#: What other systems, and handlers of Jobmill, name differently.
_ADVICE: Final = {
    "queue": "the queue of a task is queue_name",
    "max_retries": "max_attempts counts the first attempt too",
    "retries": "max_attempts counts the first attempt too",
    "cron": 'write @recurring("0 3 * * *") above @task',
    "every": 'write @recurring(every="10m") above @task',
    "delay": "write .using(run_after=timezone.now() + timedelta(...))",
    "countdown": "write .using(run_after=timezone.now() + timedelta(...))",
    "eta": "write .using(run_after=...)",
    "due_at": "write .using(run_after=...)",
    "isolate": "only handlers of a client have it",
    "concurrency": "only handlers of a client have it; a queue can have a running limit",
}


def check_names(kind: Any, given: Mapping[str, Any]) -> None:
    """Raise TypeError for a name that a task does not have."""
    known = {field.name for field in fields(kind)} - {"func"} | {*TASK_OPTIONS}
    for name in given:
        if name not in known:
            raise TypeError(f"a task has no {name!r}: {_ADVICE.get(name) or 'it has ' + ', '.join(sorted(known))}")


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
    if given.get("backoff", "exponential") == "exponential":
        given["backoff"] = TASK_BACKOFF
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
    for name, check in (("unique_key", check_unique_key), ("tenant", check_tenant), ("lane", check_lane)):
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


def normalized(value: Any) -> Any:
    """A value as JSON, by Django's rules. Results of other drafts stay as they are."""
    if not has_placeholder(value):
        return normalize_json(value)
    if isinstance(value, dict):
        return {key: normalized(one) for key, one in value.items()}
    return [normalized(one) for one in value] if isinstance(value, list | tuple) else value


def positional_names(task: Any) -> tuple[str, ...]:
    """The parameters that positional arguments of a task belong to; a last one with a star takes all the rest."""
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    parameters = _signature(task.func, task.takes_context).parameters.values()
    return tuple(
        f"*{one.name}" if one.kind is inspect.Parameter.VAR_POSITIONAL else one.name
        for one in parameters
        if one.kind not in by_name
    )


def from_arguments(task: Any, options: Mapping[str, Any], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The options that functions make from the arguments of a task, those that are texts, and policies of its key."""
    given = {name: options[name] for name in (*FROM_ARGUMENTS, *POLICIES) if name in options}
    for name, value in given.items():
        if callable(value):
            if has_placeholder([args, kwargs]):
                advice = f"its arguments are not known yet; give a text: .using({name}=...)"
                raise TypeError(f"{name} of {task.module_path} is a function: {advice}")
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

    function: Callable[..., Any]
    options: dict[str, Any]


#: By the path of the task.
recurring_tasks: dict[str, Recurring] = {}


def recurring(cron: str | None = None, *, every: Any = None, timezone: str = "UTC") -> Callable[[T], T]:
    """Let a Task recur, above its `@task`: `@recurring("0 3 * * *", timezone="Europe/Berlin")` or `every="10m"`.

    Workers make the recurring job when they start, and end it when the task recurs no longer. The task is called
    without arguments.
    """
    given = {"cron": cron, "every": every, "timezone": timezone}
    options = {name: value for name, value in given.items() if value is not None}

    def decorate(task: T) -> T:
        if not isinstance(task, Task):
            raise InvalidTask("@recurring is for a Task: write it above @task")
        path = task.module_path
        if cron is None and every is None:
            raise InvalidTask(f'{path}: @recurring needs a cron expression or every=, such as @recurring(every="10m")')
        if path in recurring_tasks and recurring_tasks[path].function is task.func:
            raise InvalidTask(f"{path} has two @recurring, but a task has one schedule: write a second task")
        try:
            _signature(task.func, task.takes_context).bind()
        except TypeError as error:
            raise InvalidTask(f"{path} recurs, so it is called without arguments: {error}; give a default") from None
        try:
            declared_options(options, path, handler_options({}))
        except InvalidValue as error:
            raise InvalidTask(str(error)) from error
        recurring_tasks[path] = Recurring(task.func, options)
        return task

    return decorate
