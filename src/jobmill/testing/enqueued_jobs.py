"""`enqueued`: which jobs a test has enqueued; a failure shows the nearest jobs and the fields that differ."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import msgspec
from msgspec import Struct

from jobmill.client.query import matching
from jobmill.client.sync import is_in_loop
from jobmill.core.durations import Duration, instant_ms, shown_ms, to_datetime, to_ms
from jobmill.core.job import Job, State
from jobmill.core.values import EVERYTHING
from jobmill.errors import InvalidValue
from jobmill.handlers.conversion import to_plain
from jobmill.handlers.handler import Handler
from jobmill.testing.runs import shown_call

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.testing.store_calls import StoreCalls

#: How many jobs a failure shows.
SHOWN = 3
#: How often `soon` and `within` query.
EVERY_S = 0.005


class HasPath(Protocol):
    """A task of Django."""

    @property
    def module_path(self) -> str:
        """The name of its handler."""
        ...

    @property
    def func(self) -> Callable[..., Any]:
        """The function."""
        ...

    @property
    def takes_context(self) -> bool:
        """Whether the first argument of the function is a context."""
        ...


#: Which jobs: a handler, the name of one, a task of Django, or None for all.
Which = Handler[..., Any] | str | HasPath | None


class Difference(Struct, frozen=True):
    """A field of a job that is not as wanted."""

    field: str
    found: str
    wanted: str

    def __str__(self) -> str:
        """As in a failure."""
        return f"{self.field}: {self.found} instead of {self.wanted}"


class EnqueuedJobs:
    """The fixture `enqueued`: every job that the test has enqueued, whatever its state is now.

    `enqueued.one(send, to="ada")` finds a job by its handler (or its name) and fields of its payload. Other keywords
    are `state`, `queue`, `priority`, `unique_key`, `tenant`, `lane`, `headers`, `delay` (between the call that enqueued
    it and its due time) and `due_at`; a time may differ by `delta`, one second by default. Where a field of the payload
    has one of these names, give it as `payload={"queue": ...}`.
    """

    def __init__(self, client: Client, calls: StoreCalls) -> None:
        self._client = client
        self._calls = calls

    def all(self, job: Which = None, /, **wanted: Any) -> list[Job]:
        """The jobs that match, in the order in which they were enqueued; also none."""
        return self._matching(_Wanted.of(job, wanted), self._jobs())

    def one(self, job: Which = None, /, *, within: Duration | None = None, **wanted: Any) -> Job:
        """The only job that matches. With `within`, a sync test waits for it; an async test awaits `soon`."""
        return self.exactly(1, job, within=within, **wanted)[0]

    def some(self, job: Which = None, /, *, within: Duration | None = None, **wanted: Any) -> list[Job]:
        """The jobs that match: at least one."""
        return self._wait_for(_Wanted.of(job, wanted), None, within)

    def exactly(self, count: int, job: Which = None, /, *, within: Duration | None = None, **wanted: Any) -> list[Job]:
        """The jobs that match: this many."""
        return self._wait_for(_Wanted.of(job, wanted), count, within)

    def none(self, job: Which = None, /, **wanted: Any) -> None:
        """No job matches."""
        self._wait_for(_Wanted.of(job, wanted), 0, None)

    async def soon(self, job: Which = None, /, *, timeout: Duration = 1, **wanted: Any) -> Job:
        """Wait until one job matches, while other tasks run."""
        asked, end = _Wanted.of(job, wanted), time.monotonic() + to_ms(timeout, "timeout") / 1000
        while True:
            jobs = await self._read()
            found = self._matching(asked, jobs)
            if len(found) == 1:
                return found[0]
            if time.monotonic() >= end:
                why = asked.failure(found, jobs, 1) + self._client.not_yet_enqueued()
                raise AssertionError(f"{why}\n(after {timeout})")
            await asyncio.sleep(EVERY_S)

    # ------------------------------------------------------------------------------------------------ how

    def _wait_for(self, wanted: _Wanted, count: int | None, within: Duration | None) -> list[Job]:
        end = time.monotonic() + (0 if within is None else to_ms(within, "within") / 1000)
        if within is not None and is_in_loop():
            raise InvalidValue("within", "nothing in an async test", within, "await enqueued.soon(..., timeout=...)")
        while True:
            jobs = self._jobs()
            found = self._matching(wanted, jobs)
            if len(found) == count or (count is None and found):
                return found
            if time.monotonic() >= end:
                raise AssertionError(wanted.failure(found, jobs, count) + self._client.not_yet_enqueued())
            time.sleep(EVERY_S)

    def _jobs(self) -> list[Job]:
        return self._client.sync(self._read())

    async def _read(self) -> list[Job]:
        await self._client.open()
        jobs = [job async for job in matching(self._calls.direct, EVERYTHING)]
        return sorted(jobs, key=lambda job: (job.created_ms, job.id))

    def _matching(self, wanted: _Wanted, jobs: list[Job]) -> list[Job]:
        found = [job for job in jobs if not wanted.differences(job)]
        self._calls.read.update(job.id for job in found)
        return found


class WantedOptions(TypedDict, total=False):
    """What a test may want of a job, except fields of its payload."""

    state: State
    queue: str
    priority: int
    unique_key: str | None
    tenant: str | None
    lane: str | None
    headers: dict[str, str]
    delay: Duration
    due_at: datetime
    delta: Duration
    payload: dict[str, Any]


_PLAIN = ("state", "queue", "priority", "unique_key", "tenant", "lane", "headers")


class _Wanted:
    """What a test wants of a job."""

    def __init__(
        self,
        name: str | None,
        payload: dict[str, Any],
        options: WantedOptions,
        task: inspect.Signature | None = None,
    ) -> None:
        self._name = name
        #: Of a task of Django, whose arguments are in two fields of the payload.
        self._task = task
        # As the store has it: a date is a text.
        self._payload: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(to_plain(payload, "payload")))
        self._given = options
        self._plain = {field: value for field, value in options.items() if field in _PLAIN}
        self._delta_ms = to_ms(options.get("delta", 1), "delta")
        self._delay_ms = to_ms(options["delay"], "delay") if "delay" in options else None
        self._due_ms = instant_ms(options["due_at"], "due_at") if "due_at" in options else None

    @staticmethod
    def of(job: Which, given: dict[str, Any]) -> _Wanted:
        """From the keywords of a call. An unknown field is an error: nothing could ever match it."""
        options: Any = {field: value for field, value in given.items() if field in WantedOptions.__annotations__}
        payload = {field: value for field, value in given.items() if field not in options}
        if job is None or isinstance(job, str):
            return _Wanted(job, payload | options.get("payload", {}), options)
        name, signature = (job.name, inspect.signature(job.fn)) if isinstance(job, Handler) else _of_task(job)
        for field in options:
            if field in signature.parameters and field != "payload":
                advice = f"{name} has a parameter of this name: write payload={{{field!r}: ...}}"
                raise InvalidValue(field, "an option of the job", given[field], advice)
        payload |= options.get("payload", {})
        parameters = signature.parameters.values()
        known = [one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
        more = () if isinstance(job, Handler) else ("args", "kwargs")
        for field in payload:
            if field not in (*known, *more) and not takes_any:
                raise InvalidValue(field, f"one of the parameters of {name}: {', '.join((*known, *more))}", field)
        return _Wanted(name, payload, options, None if isinstance(job, Handler) else signature)

    def __str__(self) -> str:
        """As a call."""
        given = [f"{field}={value!r}" for field, value in self._payload.items()]
        given += [f"{field}={value!r}" for field, value in self._given.items() if field != "payload"]
        return f"{self._name or '*'}({', '.join(given)})"

    def differences(self, job: Job) -> list[Difference]:
        """In which fields a job is not as wanted."""
        found: list[Difference] = []
        if self._name not in (None, job.name):
            found.append(Difference("name", repr(job.name), repr(self._name)))
        found += self._payload_differences(job)
        for field, value in self._plain.items():
            has = getattr(job, field)
            if has != value:
                found.append(Difference(field, repr(has), repr(value)))
        return found + self._time_differences(job)

    def _payload_differences(self, job: Job) -> list[Difference]:
        payload = job.payload
        if self._task is not None and job.name == self._name:
            payload = _arguments(self._task, payload)
        return list(_differences("", payload, self._payload)) if self._payload else []

    def _time_differences(self, job: Job) -> list[Difference]:
        found, about = [], f" (± {shown_ms(self._delta_ms)})"
        due_ms = job.due_ms if job.held is None else job.held.due.at_ms
        if self._delay_ms is not None:
            has = None if due_ms is None else due_ms - job.created_ms
            if has is None or abs(has - self._delay_ms) > self._delta_ms:
                shown = "held" if has is None else shown_ms(has)
                found.append(Difference("delay", shown, shown_ms(self._delay_ms) + about))
        if self._due_ms is not None and (due_ms is None or abs(due_ms - self._due_ms) > self._delta_ms):
            found.append(Difference("due_at", str(job.due_at), str(to_datetime(self._due_ms)) + about))
        return found

    def failure(self, found: list[Job], jobs: list[Job], count: int | None) -> str:
        """What a failing test prints."""
        wanted = "at least one job" if count is None else "no job" if count == 0 else _counted(count)
        text = f"expected {wanted} like {self}, found {len(found) or 'none'}"
        if found:
            lines = [_shown(job) for job in found[: SHOWN + 2]]
            more = len(found) - len(lines)
            return "\n".join([f"{text}:", *lines, *([f"  and {more} more"] if more > 0 else [])])
        if not jobs:
            return f"{text}: no job was enqueued at all"
        # A job of another name is farther away than one of this name with other values.
        ranked = sorted(
            ((self.differences(job), job) for job in reversed(jobs)),
            key=lambda one: sum(10 if difference.field == "name" else 1 for difference in one[0]),
        )
        lines = [f"{text}; the nearest of {_counted(len(jobs))}:"]
        for differences, job in ranked[:SHOWN]:
            lines += [_shown(job), *(f"      {difference}" for difference in differences)]
        return "\n".join(lines)


def _of_task(task: HasPath) -> tuple[str, inspect.Signature]:
    """The name and the parameters of a task of Django, without its context."""
    signature = inspect.signature(task.func)
    skipped = 1 if task.takes_context else 0
    return task.module_path, signature.replace(parameters=[*signature.parameters.values()][skipped:])


def _arguments(task: inspect.Signature, payload: Any) -> dict[str, Any]:
    """The payload of a task of Django, and its arguments by the names of its parameters."""
    try:
        bound = task.bind(*payload["args"], **payload["kwargs"])
    except (TypeError, KeyError):  # enqueued by other code, with arguments that the task does not take
        return payload if isinstance(payload, dict) else {}
    bound.apply_defaults()
    others = [bound.arguments.pop(one.name) for one in task.parameters.values() if one.kind is one.VAR_KEYWORD]
    return {**bound.arguments, **{name: value for named in others for name, value in named.items()}, **payload}


def _differences(path: str, found: Any, wanted: Any) -> Iterator[Difference]:
    """Where a value is not as wanted. Other fields of an object may have any value; an empty object is only itself."""
    if wanted and isinstance(wanted, dict) and isinstance(found, dict):
        for field, value in wanted.items():
            name = f"{path}.{field}" if path else field
            if field in found:
                yield from _differences(name, found[field], value)
            else:
                yield Difference(name, "not given", repr(value))
    elif found != wanted:
        yield Difference(path or "payload", repr(found), repr(wanted))


def _counted(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _shown(job: Job) -> str:
    due = f", due at {job.due_at}" if job.state == "waiting" else ""
    return f"  {shown_call(job)}: {job.state}, queue {job.queue}{due}"
