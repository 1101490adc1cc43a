"""Celery's tasks: functions whose calls become jobs."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from jobmill.client.client import Client
from jobmill.compat.celery.binding import Binding
from jobmill.compat.celery.canvas import Drafted, Part, chain
from jobmill.compat.celery.options import PAGE, TaskOptions, check_others, refusal
from jobmill.compat.celery.result import AsyncResult, TaskRevokedError
from jobmill.compat.tagged import from_tagged, to_tagged
from jobmill.core.durations import instant_ms, shown_ms, to_datetime, to_ms
from jobmill.core.job import Job
from jobmill.core.limits import MAX_ATTEMPTS, check_int
from jobmill.errors import InvalidValue, JobmillError
from jobmill.handlers.context import Context
from jobmill.handlers.draft import Draft
from jobmill.handlers.handler import Handler
from jobmill.handlers.options import error_types

P = ParamSpec("P")
R = TypeVar("R")

#: The header with the time after which a job must not start, in milliseconds.
EXPIRES = "celery-expires"


class Retry(Exception):
    """Raised by `task.retry()`: the job runs again after `delay` seconds."""

    def __init__(self, message: str = "", delay: float = 0) -> None:
        self.delay = delay
        super().__init__(message)


class MaxRetriesExceededError(Exception):
    """`task.retry()` was called without `exc`, and no retry is left."""


class Request:
    """`task.request`: the present run."""

    def __init__(
        self, context: Context | None, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        job = None if context is None else context.job
        self.called_directly = job is None
        self.id = None if job is None else job.id
        self.retries = 0 if job is None else job.attempt - 1
        self.hostname = None if job is None else job.worker
        self.headers = {} if job is None else job.headers
        self.args, self.kwargs = list(args), dict(kwargs or {})
        self._context = context


_request: ContextVar[Request] = ContextVar("jobmill_celery_request")
_DIRECT = Request(None)


class Task(Generic[P, R]):
    """A function that was decorated: call it, or enqueue it with `delay` and `apply_async`."""

    __name__: str
    handler: Handler[..., Any]

    def __init__(self, binding: Binding, fn: Callable[..., Any], given: dict[str, Any]) -> None:
        if inspect.iscoroutinefunction(fn):
            raise InvalidValue("task", "a plain function", fn, f"make it a handler: @jobs.handler; see {PAGE}")
        options = {name: given.pop(name) for name in TaskOptions.__annotations__ if name in given}
        self._bind: bool = given.pop("bind", False)
        check_others(given | {name: options[name] for name in ("serializer",) if name in options})
        self.binding, self.run = binding, fn
        self.name: str = options.get("name") or f"{fn.__module__}.{fn.__qualname__}"
        retry = dict(options.get("retry_kwargs", {}))
        self.max_retries: int | None = retry.pop("max_retries", options.get("max_retries", 3))
        self.default_retry_delay: float = retry.pop("countdown", options.get("default_retry_delay", 180))
        check_others(retry)
        self._options = options
        self._signature = inspect.signature(fn)
        if self._bind:
            self._signature = self._signature.replace(parameters=[*self._signature.parameters.values()][1:])
        self.__wrapped__ = fn
        self.__name__, self.__qualname__, self.__module__ = fn.__name__, fn.__qualname__, fn.__module__
        self.__doc__ = fn.__doc__

    def __repr__(self) -> str:
        """The name."""
        return f"<task {self.name!r}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function at once, without a queue."""
        return self._call(Request(None, args, kwargs))

    def _call(self, request: Request) -> R:
        token = _request.set(request)
        try:
            first = (self,) if self._bind else ()
            result: R = self.run(*first, *request.args, **request.kwargs)
            return result
        finally:
            _request.reset(token)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(self._unbound() if name == "handler" else refusal(name))

    def _unbound(self) -> str:
        return f"the task {self.name} belongs to no client yet: call jobmill.compat.celery.bind(jobs) first; see {PAGE}"

    # ------------------------------------------------------------------------------------------------ enqueue

    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Enqueue a job with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        time_limit: float | None = None,
        headers: dict[str, str] | None = None,
        ignore_result: bool | None = None,
        **other: object,
    ) -> AsyncResult[R]:
        """Enqueue a job with these arguments and options. `ignore_result` of one job is ignored."""
        check_others(other)
        draft = self.draft(
            args,
            kwargs,
            task_id,
            countdown=countdown,
            eta=eta,
            expires=expires,
            queue=queue,
            priority=priority,
            time_limit=time_limit,
            headers=headers,
        )
        (id,) = self.binding.client.send([draft])
        return AsyncResult(id, self.binding)

    def draft(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        *,
        first: Sequence[Any] = (),
        after: Drafted | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        time_limit: float | None = None,
        headers: dict[str, str] | None = None,
        **other: object,
    ) -> Draft[Any]:
        """The job as a value. `first` are results of other drafts, which come before the arguments."""
        check_others(other)
        args, kwargs = list(args or ()), dict(kwargs or {})
        if self._options.get("typing", True):
            self._signature.bind(*first, *args, **kwargs)
        client = self.binding.client
        given: dict[str, Any] = {"id": task_id, "delay": countdown, "due_at": _aware(eta, "eta"), "queue": queue}
        if priority is not None:
            given["priority"] = self.binding.to_priority(priority)
        if time_limit is not None:
            given["timeout"] = time_limit
        expires = self._options.get("expires") if expires is None else expires
        given["headers"] = dict(headers or {}) | ({} if expires is None else {EXPIRES: str(_end(client, expires))})
        draft = self.handler.options(**given).draft(args=[*first, *to_tagged(args)], kwargs=to_tagged(kwargs))
        return draft if after is None else draft.after(after)

    def s(self, /, *args: Any, **kwargs: Any) -> Signature[R]:
        """The call as a value. Arguments that are given later come before these."""
        return Signature(self, args, kwargs, {}, immutable=False)

    def si(self, /, *args: Any, **kwargs: Any) -> Signature[R]:
        """The call as a value that takes no more arguments."""
        return Signature(self, args, kwargs, {}, immutable=True)

    def AsyncResult(self, task_id: str) -> AsyncResult[R]:  # noqa: N802 - Celery's name
        """The result of the job with this id."""
        return AsyncResult(task_id, self.binding)

    # ------------------------------------------------------------------------------------------------ run

    @property
    def request(self) -> Request:
        """The present run."""
        return _request.get(_DIRECT)

    @property
    def context(self) -> Context:
        """Jobmill's context of the present run: progress, log lines, fence."""
        if (context := self.request._context) is None:
            raise JobmillError(f"no job of {self.name} runs here: there is no context")
        return context

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        max_retries: int | None = None,
        **other: object,
    ) -> NoReturn:
        """End this run, and run the job again later; if no retry is left, raise `exc` or MaxRetriesExceededError."""
        check_others(other)
        request = self.request
        if request.called_directly:
            raise exc or Retry("the task can be retried")
        limit = self.max_retries if max_retries is None else max_retries
        if limit is not None and request.retries >= limit:
            raise exc or MaxRetriesExceededError(f"no retry of {self.name} is left (max_retries={limit})")
        delay = self.default_retry_delay if countdown is None else countdown
        if eta is not None:
            delay = max(0, instant_ms(eta, "eta") - self.binding.client.store.now()) / 1000
        why = "" if exc is None else f": {exc!r}"
        raise Retry(f"again after {shown_ms(to_ms(delay, 'countdown'))}{why}", delay) from exc

    def backoff(self, attempt: int, error: BaseException) -> float | None:
        """The seconds until the next attempt, by Celery's rules; None for none."""
        if isinstance(error, Retry):
            return error.delay
        retries, options = attempt - 1, self._options
        if isinstance(error, MaxRetriesExceededError) or (self.max_retries is not None and retries >= self.max_retries):
            return None
        if not options.get("retry_backoff"):
            return self.default_retry_delay
        # The exponent has a limit: after a thousand retries the number would fill the memory.
        delay = int(max(1, options["retry_backoff"])) * 2 ** min(retries, 60)
        delay = min(int(options.get("retry_backoff_max", 600)), delay)
        return random.randrange(delay + 1) if options.get("retry_jitter", True) else delay

    def register(self, client: Client) -> None:
        """Make this task a handler of a client."""
        options = self._options
        given: dict[str, Any] = {name: options[name] for name in ("queue", "isolate") if name in options}
        # A call of retry() may raise the limit of a bound task, so that only `backoff` decides there.
        endless = self._bind or self.max_retries is None
        given["max_attempts"] = MAX_ATTEMPTS if endless else check_int(self.max_retries, "max_retries", 0) + 1
        if options.get("acks_late") is False or options.get("reject_on_worker_lost") is False:
            given["max_crashes"] = 1
        if "time_limit" in options:
            given["timeout"] = options["time_limit"]
        self.handler = client.handler(
            name=self.name,
            priority=self.binding.to_priority(options.get("priority", 0)),
            keep_result=not options.get("ignore_result", False),
            retry_on=(Retry, *_errors(options, "autoretry_for")),
            fail_on=_errors(options, "dont_autoretry_for"),
            backoff=self.backoff,
            **given,
        )(self._runner())

    def _runner(self) -> Callable[..., Any]:
        def run(context: Context, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
            _check_expired(context.job, self.binding.client.store.now())
            given, named = from_tagged(args or []), from_tagged(kwargs or {})
            return to_tagged(self._call(Request(context, given, named)))

        # An isolated process finds the handler by these names.
        run.__name__, run.__module__, run.__qualname__ = self.__name__, self.__module__, f"{self.__qualname__}.handler"
        return run


class Signature(Generic[R]):
    """A call as a value: made by `task.s(...)` and `task.si(...)`."""

    def __init__(
        self,
        task: Task[..., R],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: dict[str, Any],
        *,
        immutable: bool,
    ) -> None:
        self.task, self.args, self.kwargs, self.options, self.immutable = (
            task,
            tuple(args),
            dict(kwargs),
            options,
            immutable,
        )

    def set(self, **options: Any) -> Signature[R]:
        """Add options of `apply_async`."""
        self.options |= options
        return self

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[R]:
        """Enqueue the call."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[R]:
        """Enqueue the call, with these arguments first unless it is immutable."""
        if self.immutable:
            args, kwargs = (), {}
        return self.task.apply_async(
            (*(args or ()), *self.args), {**self.kwargs, **(kwargs or {})}, **self.options | options
        )

    def drafted(self, before: Drafted | None) -> Drafted:
        """The call as a draft that waits for the jobs before it. It gets their result first, unless it is immutable."""
        first: list[Any] = []
        if before is not None and not self.immutable:
            first = [before.result if isinstance(before, Draft) else before.results]
        after = before if self.immutable else None
        return self.task.draft(self.args, self.kwargs, first=first, after=after, **self.options)

    @property
    def binding(self) -> Binding:
        """Where the task belongs to."""
        return self.task.binding

    def __or__(self, other: Part) -> chain:
        """This call, then another part, which gets its result as its first argument."""
        return chain(self, other)


def _errors(options: Mapping[str, Any], name: str) -> tuple[type[BaseException], ...]:
    given = options.get(name, ())
    return error_types(tuple(given) if isinstance(given, list) else given, name)


def _aware(at: datetime | None, field: str) -> datetime | None:
    return None if at is None else to_datetime(instant_ms(at, field))


def _end(client: Client, expires: float | datetime) -> int:
    if isinstance(expires, datetime):
        return instant_ms(expires, "expires")
    client.sync.open()
    return client.store.now() + to_ms(expires, "expires")


def _check_expired(job: Job, now_ms: int) -> None:
    end = job.headers.get(EXPIRES, "")
    if end.isdecimal() and int(end) < now_ms:
        raise TaskRevokedError(f"expired at {to_datetime(int(end)).isoformat()}, before it could start")
