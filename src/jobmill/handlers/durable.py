"""Durable runs: a handler that records its steps, waits for other jobs, sleeps, or waits for a signal.

A run that waits is suspended: `Suspend` goes up through the handler, the job waits in its store, and later the handler
runs again from its beginning. What it has done before is answered from what was recorded.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from jobmill.core.durations import Duration, to_ms
from jobmill.core.flows import MAX_STEP_BYTES, MAX_STEPS, Dependency, Recorded, Signal, Step, first_line
from jobmill.core.job import DAY_MS, Job
from jobmill.core.lifecycle import Succeeded, Suspended
from jobmill.core.values import NewJob, at
from jobmill.errors import DependencyFailed, InvalidValue, JobmillError, JobNotFound, StepFailed, StepsChanged
from jobmill.handlers.conversion import from_json, public_message, result_decoder, to_plain, with_advice
from jobmill.handlers.draft import Draft

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: The end of a wait without a timeout.
FOREVER_MS = 100 * 365 * DAY_MS


#: The number of the step that has the result of a handler which has added jobs.
RETURNED = MAX_STEPS


class Suspend(BaseException):
    """Ends a run that waits. It is no Exception, so that `except Exception` in a handler does not catch it."""

    def __init__(self, outcome: Suspended | None) -> None:
        #: None: the lease of the job is lost, so that nothing may be written.
        self.outcome = outcome
        super().__init__("the run is suspended" if outcome is not None else "the lease of the job is lost")


class RunAccess(Protocol):
    """What a durable run uses of its worker."""

    async def recorded(self) -> Recorded:
        """What earlier runs of the job have recorded."""

    async def dependencies(self) -> Sequence[Dependency]:
        """The jobs that this job has waited for."""

    async def record(self, step: Step) -> bool:
        """Store a step; False if the lease is lost."""

    def now_ms(self) -> int:
        """The time of the store."""


class MakesChildren(Protocol):
    """A client, as far as a durable run needs it."""

    def child_jobs(self, drafts: Sequence[Draft[Any]], parent: Job, first: int) -> tuple[list[NewJob], list[int]]:
        """The drafts, and all that they wait for, as new jobs with the ids `<parent>.<number>` from `first` on.

        The second list says where the drafts are in the first one.
        """

    def decode_result_of(self, name: str, result: Raw) -> Any:
        """A result as the type that the handler of this name returns."""


class OpenStep(Struct, frozen=True):
    """A step that has begun: it has a number, and nothing is recorded for it."""

    number: int
    name: str


class DoneStep(Struct, frozen=True):
    """A step that an earlier run has done."""

    result_json: bytes


class DurableRun:
    """What one run of a job has recorded and waits for."""

    def __init__(self, job: Job, access: RunAccess) -> None:
        if job.recurrence is not None:
            raise JobmillError("a recurring job cannot take steps or wait: enqueue another job from its handler")
        self._job = job
        self._access = access
        self._recorded: Recorded | None = None
        self._steps: dict[int, Step] = {}
        self._dependencies: dict[str, Dependency] | None = None
        self._next_step = 0
        self._next_child = 0
        self._bytes = 0
        self._names: Counter[str] = Counter()
        #: A step that failed. It is recorded when the next step begins, because then the handler has continued.
        self._failed: Step | None = None
        #: Jobs that are enqueued when the handler has returned, and that the end of this job waits for.
        self._added: list[NewJob] = []
        #: The suspension that the handler must not have caught.
        self.suspended: Suspend | None = None

    # ------------------------------------------------------------------------------------------------ steps

    def number(self, name: str) -> OpenStep:
        """Give a step its number, at the call: several steps may run at once. A repeated name gets "#2", "#3"."""
        if not name or len(name) > 200:
            raise InvalidValue("name", "a name of a step: a text of 1 to 200 characters", name)
        if self._next_step >= MAX_STEPS:
            raise InvalidValue("step", f"at most {MAX_STEPS} steps in a job", name, "use jobs for parts of the work")
        self._names[name] += 1
        times = self._names[name]
        step = OpenStep(self._next_step, name if times == 1 else f"{name}#{times}")
        self._next_step += 1
        return step

    def key(self, name: str) -> str:
        """A key for the next step of this name, the same in every run: for services that take idempotency keys."""
        times = self._names[name] + 1
        return f"{self._job.id}:{name}" + ("" if times == 1 else f"#{times}")

    async def begin(self, step: OpenStep) -> OpenStep | DoneStep:
        """Look whether an earlier run has done this step. Raises StepFailed if it failed there."""
        await self._load()
        known = self._steps.get(step.number)
        if known is None:
            await self._record_failure()
            return step
        if known.name != step.name:
            raise StepsChanged(
                f"step {step.number + 1} is {step.name!r}, but an earlier run recorded {known.name!r} there: "
                "the handler has changed; requeue the job to begin again"
            )
        if known.error is not None:
            raise StepFailed(f"step {step.name!r} failed in an earlier run: {known.error}")
        return DoneStep(known.result_json)

    async def end(self, step: OpenStep, value: Any) -> DoneStep:
        """Record the result of a step."""
        encoded = msgspec.json.encode(to_plain(value, f"result of step {step.name!r}"))
        self._bytes += len(encoded)
        if self._bytes > MAX_STEP_BYTES:
            expected = f"at most {MAX_STEP_BYTES} bytes in all steps of a job"
            raise InvalidValue("step", expected, self._bytes, "store large results elsewhere, and return where")
        await self._record(Step(number=step.number, name=step.name, result_json=encoded))
        return DoneStep(encoded)

    def fail(self, step: OpenStep, error: Exception) -> None:
        """A step raised an error. If that ends the run, a retry takes the step again."""
        text = first_line(f"{type(error).__name__}: {error}") or type(error).__name__
        self._failed = Step(number=step.number, name=step.name, error=text)

    async def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function once in the life of the job, as far as its result could be recorded."""
        begun = await self.begin(self.number(name))
        if isinstance(begun, DoneStep):
            return decoded(function, begun)
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs)
            else:
                value = await asyncio.to_thread(function, *args, **kwargs)
                value = await value if inspect.isawaitable(value) else value
        except Exception as error:
            self.fail(begun, error)
            raise
        return decoded(function, await self.end(begun, value))  # the same value as in later runs

    # ------------------------------------------------------------------------------------------------ waiting

    async def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the run until a time."""
        until_ms = await self._instant(name, to_ms(duration, "duration"))
        if self._access.now_ms() < until_ms:
            self._suspend(Suspended(due=at(until_ms)))

    async def wait_for(self, name: str, kind: Any, timeout: Duration | None) -> Any:
        """Suspend the run until a signal has come; None after the timeout. What came first stays the answer."""
        read = _signal_reader(name, kind)
        until_ms = await self._instant(f"wait for {name}", FOREVER_MS if timeout is None else to_ms(timeout, "timeout"))
        answer = await self.begin(self.number(f"signal {name}"))
        if isinstance(answer, DoneStep):
            got = msgspec.json.decode(answer.result_json, type=list[Raw])
            return read(got[0]) if got else None
        signals: dict[str, Signal] = {one.name: one for one in (await self._load()).signals}
        if name in signals:
            value = signals[name].value_json
            await self._record(Step(number=answer.number, name=answer.name, result_json=b"[%b]" % value))
            return read(Raw(value))
        if self._access.now_ms() >= until_ms:
            await self._record(Step(number=answer.number, name=answer.name, result_json=b"[]"))
            return None
        return self._suspend(Suspended(waits_for=name, due=at(until_ms)))

    async def _instant(self, name: str, after_ms: int) -> int:
        """The end of a wait: decided once, and recorded."""
        begun = await self.begin(self.number(name))
        if isinstance(begun, DoneStep):
            return msgspec.json.decode(begun.result_json, type=int)
        until_ms = self._access.now_ms() + after_ms
        await self.end(begun, until_ms)
        return until_ms

    async def run_all(self, drafts: Sequence[Draft[Any]]) -> list[Any]:
        """Suspend the run until other jobs have ended; what they returned. Raises DependencyFailed if one failed."""
        if not drafts:
            return []
        if self._failed is not None:
            await self._load()
            await self._record_failure()
        client: MakesChildren = drafts[0].client  # type: ignore[assignment]  # the client of the handlers
        children, wanted = client.child_jobs(drafts, self._job, self._next_child)
        self._next_child += len(children)
        if self._dependencies is None:
            self._dependencies = {one.id: one for one in await self._access.dependencies()}
        ended = [self._dependencies.get(child.id) for child in children]
        if any(one is None or one.state == "pending" for one in ended):
            self._suspend(Suspended(children=tuple(children)))
        return [_result_of(client, children[at], ended[at]) for at in wanted]

    def add(self, drafts: Sequence[Draft[Any]]) -> None:
        """Let the end of this job wait for other jobs."""
        if drafts:
            client: MakesChildren = drafts[0].client  # type: ignore[assignment]  # the client of the handlers
            children, _ = client.child_jobs(drafts, self._job, self._next_child)
            self._next_child += len(children)
            self._added += children

    # ------------------------------------------------------------------------------------------------ the end

    async def finish(self, outcome: Succeeded) -> Succeeded | Suspended:
        """The handler has returned. If it has added jobs, its result is recorded, and the job waits for them."""
        if not self._added:
            return outcome
        ended = msgspec.json.encode([[child.id for child in self._added], Raw(outcome.result_json)])
        await self._record(Step(number=RETURNED, name="return", result_json=ended))
        return Suspended(children=tuple(self._added))

    async def check_end(self) -> None:
        """The handler has returned: it must have taken all steps that were recorded."""
        await self._load()
        unused = [step for number, step in sorted(self._steps.items()) if self._next_step <= number < RETURNED]
        if unused:
            raise StepsChanged(
                f"the handler ended without the step {unused[0].name!r}, which an earlier run recorded; "
                "requeue the job to begin again"
            )

    def _suspend(self, outcome: Suspended | None) -> NoReturn:
        self.suspended = Suspend(outcome)
        raise self.suspended

    async def _load(self) -> Recorded:
        if self._recorded is None:
            self._recorded = await self._access.recorded()
            self._steps = {step.number: step for step in self._recorded.steps}
            self._bytes = sum(len(step.result_json) for step in self._recorded.steps)
        return self._recorded

    async def _record(self, step: Step) -> None:
        if not await self._access.record(step):
            self._suspend(None)
        self._steps[step.number] = step

    async def _record_failure(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            await self._record(failed)


def decoded(function: Callable[..., R], done: DoneStep) -> R:
    """The recorded result of a step, as the type that its function returns."""
    try:
        decode = result_decoder(function)
    except InvalidValue:  # a function without a signature
        decode = msgspec.json.decode
    try:
        value: R = decode(Raw(done.result_json))
    except InvalidValue as error:  # ends up in `job.error`, so it must not show the value
        raise JobmillError(error.without_value()) from None
    return value


def _signal_reader(name: str, kind: Any) -> Callable[[Raw], Any]:
    """Reads a signal as this type. Its errors end up in `job.error`, so they do not show the value."""
    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=from_json)
    except (TypeError, RuntimeError) as error:
        raise InvalidValue("kind", "a type that a signal can be validated for", kind, with_advice(error)) from None

    def read(value: Raw) -> Any:
        try:
            return decoder.decode(value)
        except Exception as error:  # a validator may raise anything
            expected, given = f"a value that fits {inspect.formatannotation(kind)}", type(msgspec.json.decode(value))
            raise InvalidValue(f"signal {name!r}", expected, given, public_message(error)) from None

    return read


def _result_of(client: MakesChildren, child: NewJob, edge: Dependency | None) -> Any:
    if edge is not None and edge.state != "succeeded":
        ended = f"failed: {edge.error}" if edge.error else f"was {edge.state}"
        raise DependencyFailed(f"job {child.id} ({child.name}) {ended}")
    if edge is None or edge.result_json is None:
        raise JobNotFound(f"the result of job {child.id} ({child.name}) is not in the store any more")
    return client.decode_result_of(child.name, edge.result_json)


def returned_before(recorded: Recorded, dependencies: Iterable[Dependency]) -> Raw | None:
    """The result of a handler that has returned in an earlier run, and whose job has waited for jobs that it added."""
    step = next((one for one in recorded.steps if one.number == RETURNED), None)
    if step is None:
        return None
    ids, result = msgspec.json.decode(step.result_json, type=tuple[list[str], Raw])
    # The run may have died after this step, and before its job waited for the others.
    return result if set(ids) <= {edge.id for edge in dependencies} else None


class SyncSteps:
    """The same for handlers that are no coroutines: `context.sync.step(...)`."""

    def __init__(self, run: DurableRun, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._run = run
        self._wait = wait

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function once in the life of the job. See `Context.step`."""
        begun = self._wait(self._run.begin(self._run.number(name)))
        if isinstance(begun, DoneStep):
            return decoded(function, begun)
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            self._run.fail(begun, error)
            raise
        return decoded(function, self._wait(self._run.end(begun, value)))

    def run(self, draft: Draft[R]) -> R:
        """Run another job and return its result. See `Context.run`."""
        result: R = self._wait(self._run.run_all([draft]))[0]
        return result

    def run_all(self, drafts: Iterable[Draft[R]]) -> list[R]:
        """Run other jobs and return their results. See `Context.run_all`."""
        results: list[R] = self._wait(self._run.run_all(list(drafts)))
        return results

    def add(self, *drafts: Draft[Any]) -> None:
        """Let the end of this job wait for other jobs. See `Context.add`."""
        self._run.add(drafts)

    def sleep(self, name: str, duration: Duration) -> None:
        """Suspend the run for a time. See `Context.sleep`."""
        self._wait(self._run.sleep(name, duration))

    def wait_for(self, name: str, kind: type[T], timeout: Duration | None = None) -> T | None:
        """Suspend the run until a signal comes. See `Context.wait_for`."""
        value: T | None = self._wait(self._run.wait_for(name, kind, timeout))
        return value
