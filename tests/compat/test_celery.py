"""`jobmill.compat.celery`: tasks behave as in Celery, or refuse with the option, the reason and the page."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill.compat.celery import (
    App,
    AsyncResult,
    Retry,
    Task,
    TaskRevokedError,
    chain,
    chord,
    group,
)
from jobmill.compat.celery.options import IGNORED, REFUSED, TaskOptions
from jobmill.stores.memory import MemoryStore
from tests.docs.pages import ROOT, code_of, table

PAGE = ROOT / "docs/moving-in.md"


@pytest.fixture
def jobs() -> Iterator[jobmill.Client]:
    client = jobmill.connect("memory://")
    yield client
    client.sync.close()


@pytest.fixture
def app(jobs: jobmill.Client) -> App:
    return App(jobs)


def run_all(jobs: jobmill.Client, times: int = 1) -> None:
    """Run what is due, and make retries due."""
    for _ in range(times):
        if any(True for _ in jobs.sync.find_all(states="waiting", errored=True)):
            jobs.sync.reschedule(states="waiting", errored=True, delay=0)
        jobs.sync.tick(100)


# ---------------------------------------------------------------------------------------------------- calls


def test_a_task_is_a_function_and_a_handler(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def add(x: int, y: int = 1) -> int:
        """Adds."""
        return x + y

    assert add(1, 2) == 3
    assert add.name == f"{__name__}.{add.__qualname__}"
    assert add.__doc__ == "Adds."
    result = add.delay(2, y=5)
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    run_all(jobs)
    assert (result.get(timeout=1), result.status, result.successful(), result.failed()) == (7, "SUCCESS", True, False)
    assert add.AsyncResult(result.id).result == 7
    with pytest.raises(TypeError, match="missing a required argument"):
        add.delay()  # type: ignore[call-arg]


def test_arguments_and_results_keep_the_types_that_celery_keeps(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def echo(*values: Any, **named: Any) -> Any:
        return [*values, named]

    given = [datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), b"\xff"]
    result = echo.delay(*given, when=given[0])
    run_all(jobs)
    assert result.get() == [*given, {"when": given[0]}]
    with pytest.raises(jobmill.InvalidValue, match="object is not JSON"):
        echo.delay(object())


def test_options_of_apply_async(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def ping() -> None: ...

    later = datetime(2099, 1, 2, tzinfo=UTC)
    options: dict[str, Any] = {"queue": "mail", "priority": 3, "time_limit": 5, "headers": {"a": "b"}, "retry": False}
    result = ping.apply_async(task_id="mine", eta=later, serializer="json", **options)
    job = jobs.sync.get("mine")
    assert (result.id, job.due_at, job.queue, job.priority) == ("mine", later, "mail", 3)
    assert (job.options.timeout_ms, job.headers) == (5_000, {"a": "b"})
    soon = jobs.sync.get(ping.apply_async(countdown=60).id)
    assert timedelta(seconds=55) < soon.due_at - datetime.now(UTC) < timedelta(seconds=65)  # type: ignore[operator]
    with pytest.raises(jobmill.InvalidValue, match="eta: expected an aware datetime"):
        ping.apply_async(eta=datetime(2099, 1, 2))
    assert app.send_task(ping.name).state == "PENDING"
    with pytest.raises(jobmill.InvalidValue, match="a task that is defined here"):
        app.send_task("nope")


def test_larger_priorities_run_first_as_on_rabbitmq(jobs: jobmill.Client) -> None:
    app = App(jobs, max_priority=10)

    @app.task
    def ping() -> None: ...

    @app.task(priority=9)
    def pong() -> None: ...

    assert [jobs.sync.get(one.id).priority for one in (ping.delay(), ping.apply_async(priority=10), pong.delay())] == [
        10,
        0,
        1,
    ]
    with pytest.raises(jobmill.InvalidValue, match="priority: expected a whole number from 0 to 10"):
        ping.apply_async(priority=11)


def test_an_expired_job_is_revoked_and_does_not_run(app: App, jobs: jobmill.Client) -> None:
    ran = []

    @app.task
    def ping() -> None:
        ran.append(1)

    past = ping.apply_async(expires=datetime(2020, 1, 1, tzinfo=UTC))
    future = ping.apply_async(expires=3600)
    run_all(jobs)
    assert (past.state, future.state, ran) == ("REVOKED", "SUCCESS", [1])
    with pytest.raises(TaskRevokedError, match="expired at 2020-01-01"):
        past.get()


def test_a_task_may_enqueue_and_call_others(app: App, jobs: jobmill.Client) -> None:
    @app.task(bind=True)
    def inner(self: Task[..., Any]) -> list[Any]:
        return [self.request.id, self.request.called_directly]

    @app.task(bind=True)
    def outer(self: Task[..., Any]) -> list[Any]:
        called = inner()
        return [inner.delay().id, called, self.request.called_directly]

    result = outer.delay()
    run_all(jobs, 2)
    id, called, directly = result.get()
    assert (called, directly) == ([None, True], False)
    assert inner.AsyncResult(id).get() == [id, False]


def test_signatures(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def join(*parts: str, end: str = "") -> str:
        return " ".join(parts) + end

    results = [join.s("b", end="!").delay("a"), join.si("b").delay("a"), join.s("x").set(queue="default").apply_async()]
    run_all(jobs)
    assert [result.get() for result in results] == ["a b!", "b", "x"]


def test_revoke_and_forget(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def ping() -> None: ...

    result = ping.delay()
    result.revoke()
    assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        result.get()
    result.forget()
    assert result.state == "PENDING"  # as Celery says of a job that it does not know
    assert AsyncResult("unknown", app.binding).ready() is False


# ---------------------------------------------------------------------------------------------------- retries


def test_an_error_is_not_retried_unless_the_task_says_so(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def plain() -> None:
        raise ValueError("no")

    result = plain.delay()
    run_all(jobs)
    assert result.failed()
    assert isinstance(result.result, jobmill.JobFailed)
    assert "ValueError: no" in str(result.traceback)
    with pytest.raises(jobmill.JobFailed, match="ValueError: no"):
        result.get()


def test_retry_runs_the_job_again(app: App, jobs: jobmill.Client) -> None:
    seen: list[tuple[Any, int]] = []

    @app.task(bind=True, default_retry_delay=30)
    def flaky(self: Task[..., Any], x: int) -> int:
        seen.append((self.request.id, self.request.retries))
        assert (self.request.args, self.request.called_directly) == ([5], False)
        self.context.log("here")
        if self.request.retries < 3:
            raise self.retry(exc=OSError("away"), countdown=7 if self.request.retries else None)
        return x

    result = flaky.delay(5)
    for delay in (30, 7, 7):
        run_all(jobs)
        job = jobs.sync.get(result.id)
        assert job.due_ms - job.updated_ms == delay * 1000
        assert result.state == "RETRY"
        assert job.error == f"Retry: again after {delay}s: OSError('away')"
    run_all(jobs)
    assert result.get() == 5
    assert seen == [(result.id, number) for number in range(4)]


@pytest.mark.parametrize(("own", "of_call", "runs"), [(3, None, 4), (1, None, 2), (0, None, 1), (1, 5, 6), (5, 2, 3)])
def test_max_retries_of_the_task_and_of_the_call(
    app: App, jobs: jobmill.Client, own: int, of_call: int | None, runs: int
) -> None:
    ran = []

    @app.task(bind=True, max_retries=own)
    def flaky(self: Task[..., Any]) -> None:
        ran.append(1)
        self.retry(exc=OSError("away"), max_retries=of_call)

    result = flaky.delay()
    run_all(jobs, 10)
    assert (len(ran), result.state) == (runs, "FAILURE")
    assert jobs.sync.get(result.id).error == "OSError: away"


def test_retries_without_an_end_and_without_an_error(app: App, jobs: jobmill.Client) -> None:
    @app.task(bind=True, max_retries=None)
    def forever(self: Task[..., Any]) -> None:
        self.retry()

    @app.task(bind=True, max_retries=0)
    def never(self: Task[..., Any]) -> None:
        self.retry()

    results = forever.delay(), never.delay()
    run_all(jobs, 8)
    assert [result.state for result in results] == ["RETRY", "FAILURE"]
    assert (
        jobs.sync.get(results[1].id).error
        == f"MaxRetriesExceededError: no retry of {never.name} is left (max_retries=0)"
    )


def test_autoretry(app: App, jobs: jobmill.Client) -> None:
    ran: list[str] = []

    @app.task(autoretry_for=(OSError,), dont_autoretry_for=(FileNotFoundError,), retry_kwargs={"max_retries": 2})
    def load(kind: str) -> None:
        ran.append(kind)
        raise {"os": OSError, "gone": FileNotFoundError, "value": ValueError}[kind](kind)

    for kind in ("os", "gone", "value"):
        load.delay(kind)
    run_all(jobs, 6)
    assert sorted(ran) == ["gone", "os", "os", "os", "value"]
    assert jobs.handlers[load.name].policy.max_attempts == 3


def test_backoff_follows_celery(app: App) -> None:
    """Celery: min(retry_backoff_max, factor * 2 ** retries), and at random below that unless retry_jitter=False."""

    def nothing() -> None: ...

    def make(**options: Any) -> Task[[], None]:
        made: Task[[], None] = app.task(
            name=f"t{len(app.tasks)}", autoretry_for=(OSError,), max_retries=None, **options
        )(nothing)
        return made

    exact = make(retry_backoff=True, retry_jitter=False)
    assert [exact.backoff(attempt, OSError()) for attempt in (1, 2, 3, 11, 5_000)] == [1, 2, 4, 600, 600]
    assert make(retry_backoff=5, retry_backoff_max=30, retry_jitter=False).backoff(3, OSError()) == 20
    jittered = make(retry_backoff=8)
    assert {jittered.backoff(1, OSError()) for _ in range(500)} == set(range(9))
    assert make().backoff(1, OSError()) == 180


def test_a_retry_outside_of_a_worker_raises(app: App) -> None:
    @app.task(bind=True)
    def flaky(self: Task[..., Any], error: Exception | None = None) -> None:
        assert self.request.called_directly
        raise self.retry(exc=error)

    with pytest.raises(OSError, match="away"):
        flaky(OSError("away"))
    with pytest.raises(Retry):
        flaky()


def test_what_a_crash_costs(app: App, jobs: jobmill.Client) -> None:
    @app.task(acks_late=False)
    def once() -> None: ...

    @app.task(acks_late=True)
    def again() -> None: ...

    @app.task(time_limit=9, ignore_result=True)
    def quiet() -> int:
        return 1

    rules = {task.__name__: jobs.handlers[task.name].policy for task in (once, again, quiet)}
    assert (rules["once"].max_crashes, rules["again"].max_crashes) == (1, 3)
    assert rules["quiet"].timeout_ms == 9_000
    result = quiet.delay()
    run_all(jobs)
    assert result.get() is None


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "option", ["rate_limit", "soft_time_limit", "base", "backend", "pydantic", "exchange", "routing_key", "nonsense"]
)
def test_an_option_of_a_task_that_is_refused(app: App, option: str) -> None:
    options: Any = {option: 5}
    with pytest.raises(jobmill.InvalidValue) as raised:
        app.task(**options)(print)
    assert raised.value.field == option
    assert str(raised.value).endswith("; see docs/moving-in.md")


@pytest.mark.parametrize("option", ["link", "link_error", "chord", "soft_time_limit", "routing_key", "group_id"])
def test_an_option_of_a_call_that_is_refused(app: App, option: str) -> None:
    @app.task
    def ping() -> None: ...

    options: Any = {option: 5}
    with pytest.raises(jobmill.InvalidValue) as raised:
        ping.apply_async(**options)
    assert raised.value.field == option
    assert str(raised.value).endswith("; see docs/moving-in.md")
    with pytest.raises(jobmill.InvalidValue, match=r"serializer: expected no serializer, got 'pickle'"):
        ping.apply_async(serializer="pickle")


def test_missing_names_say_which_page_to_read(app: App) -> None:
    @app.task
    def ping() -> None: ...

    with pytest.raises(AttributeError, match=r"update_state of Celery is not supported: .*; see docs/moving-in.md"):
        ping.update_state  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ImportError, match=r"SoftTimeLimitExceeded of Celery .*; see docs/moving-in.md"):
        from jobmill.compat.celery import SoftTimeLimitExceeded  # type: ignore[attr-defined] # noqa: F401

    async def coroutine() -> None: ...

    with pytest.raises(jobmill.InvalidValue, match="task: expected a plain function"):
        app.task(coroutine)


def test_tasks_without_a_client_say_what_to_call(jobs: jobmill.Client) -> None:
    app = App()

    @app.task
    def ping() -> None: ...

    with pytest.raises(jobmill.JobmillError, match=r"call jobmill.compat.celery.bind\(jobs\) first"):
        ping.delay()
    app.bind(jobs)
    app.bind(jobs)
    assert ping.delay().state == "PENDING"
    with jobs.using(MemoryStore()):
        assert ping.delay().state == "PENDING"
    with pytest.raises(jobmill.InvalidValue, match="the client that these tasks belong to already"):
        app.bind(jobmill.connect("memory://"))


def test_the_page_has_every_option() -> None:
    def documented(heading: str) -> set[str]:
        return {code_of(row["option"]) for row in table(PAGE, heading, "option")}

    mapped = documented("Options that have an effect")
    assert mapped >= TaskOptions.__annotations__.keys() - IGNORED.keys()
    assert documented("Options that are ignored") == IGNORED.keys()
    assert documented("What is refused") == REFUSED.keys()


# ---------------------------------------------------------------------------------------------------- processes


@pytest.mark.slow
def test_shared_tasks_run_in_a_worker_also_isolated(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(
            """
            import os, time
            import jobmill
            from jobmill.compat.celery import bind, shared_task

            jobs = jobmill.connect()
            bind(jobs)

            @shared_task
            def add(x, y):
                return x + y

            @shared_task(bind=True, isolate=True, time_limit=0.5)
            def endless(self):
                time.sleep(3600)

            @shared_task(bind=True, isolate="pool", default_retry_delay=0)
            def apart(self, x):
                if not self.request.retries:
                    raise self.retry(exc=ValueError(x))
                return [x, self.request.retries, os.getpid()]
            """
        )
    )
    program = """
import os, shop
results = shop.add.delay(1, 2), shop.endless.delay(), shop.apart.delay("a")
for _ in range(3):
    shop.jobs.sync.tick()
assert results[0].get(timeout=5) == 3
assert results[1].state == "FAILURE", results[1].state
assert shop.jobs.sync.get(results[1].id).error.startswith("timed out after 500ms")
value, retries, pid = results[2].get(timeout=5)
assert (value, retries) == ("a", 1) and pid != os.getpid()
shop.jobs.sync.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


# ---------------------------------------------------------------------------------------------------- canvas


def test_a_chain_passes_results(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    @app.task
    def answer() -> str:
        return "fixed"

    result = chain(add.s(1, 2), add.s(10), add.s(100)).apply_async()
    by_pipe = (add.s(1, 2) | add.s(10) | answer.si()).delay()
    run_all(jobs, 3)
    assert (result.get(timeout=1), by_pipe.get(timeout=1)) == (113, "fixed")


def test_a_group_and_a_chord(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    @app.task
    def total(numbers: list[int], more: int = 0) -> int:
        return sum(numbers) + more

    results = group(add.s(n, n) for n in range(3)).apply_async()
    assert (len(results), results.ready(), results.completed_count()) == (3, False, 0)
    summed = chord([add.s(n, n) for n in range(4)])(total.s(5))
    piped = (group(add.s(1, 1), add.s(2, 2)) | total.s() | add.s(1)).apply_async()
    spread = chain(add.s(1, 1), group(add.s(10), add.s(20))).apply_async()
    run_all(jobs, 4)
    assert results.get(timeout=1) == [0, 2, 4]
    assert (results.ready(), results.successful(), results.failed(), results.completed_count()) == (
        True,
        True,
        False,
        3,
    )
    assert (summed.get(timeout=1), piped.get(timeout=1)) == (17, 7)
    assert spread.get(timeout=1) == [12, 22]


def test_a_chord_whose_part_fails(app: App, jobs: jobmill.Client) -> None:
    @app.task
    def divide(x: int, y: int) -> float:
        return x / y

    @app.task
    def total(numbers: list[float]) -> float:
        return sum(numbers)

    result = chord([divide.s(1, 1), divide.s(1, 0)], total.s()).apply_async()
    run_all(jobs, 3)
    with pytest.raises(jobmill.JobFailed, match="ZeroDivisionError"):
        result.get(timeout=1)


def test_a_canvas_without_parts_is_refused(app: App) -> None:
    for kind in (chain, group):
        with pytest.raises(jobmill.InvalidValue, match="at least one"):
            kind()
    with pytest.raises(jobmill.InvalidValue, match="a body"):
        chord([app.task(len).s("x")]).apply_async()
