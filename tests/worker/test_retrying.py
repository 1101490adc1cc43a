"""Which errors are retried, and which end a job: results that cannot be stored, types of errors, backoff functions."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import re
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pydantic_core
import pytest

import jobmill
from jobmill import Client
from jobmill.worker.worker import Worker


class Color(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    number: int


class Strict(pydantic.BaseModel, extra="forbid"):
    amount: Annotated[int, pydantic.Field(gt=0, alias="total")] = 1
    models: dict[str, Model] = {}
    odd: int = 1
    custom: int = 1
    known: int = 1

    @pydantic.field_validator("known")
    @classmethod
    def name_of(cls, value: int) -> int:
        return {1: 1}[value]

    @pydantic.field_validator("odd")
    @classmethod
    def is_odd(cls, value: int) -> int:
        assert value % 2, f"bad value {value}"
        return value

    @pydantic.field_validator("custom")
    @classmethod
    def is_known(cls, value: int) -> int:
        if value != 1:
            raise pydantic_core.PydanticCustomError("unknown_number", f"bad value {value}")
        return value


@dataclasses.dataclass
class Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n > 1:
            kind = ValueError if self.n % 2 else msgspec.ValidationError
            raise kind(f"bad value {self.n}") from KeyError()


class Sealed(msgspec.Struct, forbid_unknown_fields=True): ...


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


async def failed(enqueued: jobmill.Enqueued[Any]) -> jobmill.Job:
    with pytest.raises(jobmill.JobFailed) as caught:
        await enqueued.result(timeout=10)
    return caught.value.job


# ---------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("value", [{1}, b"secret", object(), float("nan"), {"a": {2: "secret"}}, [1, {1j}]])
async def test_a_result_that_cannot_be_stored_does_not_run_the_handler_again(jobs: Client, value: object) -> None:
    charged = []

    @jobs.handler(max_attempts=3, backoff="1ms")
    def charge() -> Any:
        charged.append(1)
        return value

    async with Worker(jobs):
        job = await failed(await charge.enqueue())
    assert charged == [1]
    assert (job.state, job.errors) == ("failed", 1)
    assert (job.error or "").startswith("the handler finished, but its result cannot be stored: result")
    assert "secret" not in (job.error or "")


async def test_a_result_that_cannot_be_converted_is_named_with_its_type(jobs: Client) -> None:
    class Broken(pydantic.BaseModel):
        @pydantic.model_serializer
        def dump(self) -> str:
            raise ValueError("bad value 7777771")

    @jobs.handler()
    def returns() -> Any:
        return Broken()

    async with Worker(jobs):
        job = await failed(await returns.enqueue())
    why = "expected a JSON value; converting a value of type Broken raised PydanticSerializationError"
    assert job.error == f"the handler finished, but its result cannot be stored: result: {why}"
    assert job.attempts[-1].error_type == "jobmill.errors.InvalidValue"


@pytest.mark.parametrize("value", ["x" * (11 * 1024 * 1024 - 2), [[1] * (1 << 19)] * 11])
async def test_a_result_that_is_too_large_is_named_with_its_size(jobs: Client, value: object) -> None:
    @jobs.handler()
    def large() -> object:
        return value

    async with Worker(jobs):
        job = await failed(await large.enqueue())
    assert re.fullmatch(
        "the handler finished, but its result cannot be stored: Job result size 1[01].0 MB exceeds limit of 10.0 MB; "
        "store the data elsewhere and return a reference to it",
        job.error or "",
    )


async def test_a_result_can_be_dropped_on_purpose(jobs: Client) -> None:
    @jobs.handler(keep_result=False)
    def file() -> bytes:
        return b"not JSON"

    @jobs.handler(keep_result=False)
    async def number() -> int:
        return 3

    async with Worker(jobs):
        assert await (await file.enqueue()).result(timeout=10) is None
        assert await (await number.enqueue()).result(timeout=10) is None


# ---------------------------------------------------------------------------------------------------- types of errors


@pytest.mark.parametrize(
    ("options", "error", "is_retried"),
    [
        ({"retry_on": ConnectionError}, ConnectionResetError("x"), True),
        ({"retry_on": ConnectionError}, ValueError("x"), False),
        ({"retry_on": (ConnectionError, ValueError)}, ValueError("x"), True),
        ({"fail_on": ValueError}, UnicodeDecodeError("ascii", b"", 0, 1, "x"), False),
        ({"fail_on": ValueError}, KeyError("x"), True),
        ({"retry_on": OSError, "fail_on": FileNotFoundError}, FileNotFoundError("x"), False),
        ({"retry_on": OSError, "fail_on": FileNotFoundError}, PermissionError("x"), True),
    ],
)
async def test_errors_are_retried_by_their_type(
    jobs: Client, options: dict[str, Any], error: Exception, is_retried: bool
) -> None:
    @jobs.handler(max_attempts=2, backoff="1ms", **options)
    async def bad() -> None:
        raise error

    async with Worker(jobs):
        job = await failed(await bad.enqueue())
    assert job.errors == (2 if is_retried else 1)


@pytest.mark.parametrize(("retry_on", "errors"), [(TimeoutError, 2), (ConnectionError, 1)])
async def test_a_timeout_counts_as_a_timeout_error(jobs: Client, retry_on: type[Exception], errors: int) -> None:
    @jobs.handler(max_attempts=2, backoff="1ms", timeout=0.01, retry_on=retry_on)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with Worker(jobs):
        job = await failed(await slow.enqueue())
    assert (job.errors, job.error) == (errors, "timed out after 10ms")


async def test_snooze_is_no_error(jobs: Client) -> None:
    runs = []

    @jobs.handler(retry_on=ConnectionError)
    async def later() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise jobmill.Snooze("1ms")

    async with Worker(jobs):
        await (await later.enqueue()).result(timeout=10)
    assert len(runs) == 2


@pytest.mark.parametrize("given", ["ConnectionError", 3, (ValueError, "x"), [ValueError], int])
@pytest.mark.parametrize("option", ["retry_on", "fail_on"])
def test_what_is_not_an_exception_class_is_refused(jobs: Client, option: str, given: Any) -> None:
    with pytest.raises(jobmill.InvalidValue, match=f"{option}: expected an exception class, or a tuple of them"):
        jobs.handler(**{option: given})(lambda: None)


# ---------------------------------------------------------------------------------------------------- backoff functions


async def test_a_backoff_function_that_returns_none_means_no_retry(jobs: Client) -> None:
    @jobs.handler(max_attempts=5, backoff=lambda attempt, error: "1ms" if attempt < 2 else None)
    async def bad() -> None:
        raise ValueError("x")

    async with Worker(jobs):
        job = await failed(await bad.enqueue())
    assert (job.errors, job.error) == (2, "ValueError: x")


@pytest.mark.parametrize("timeout", [None, 0.01])
async def test_a_backoff_function_that_raises_fails_the_job_with_both_errors(
    jobs: Client, timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(attempt: int, error: BaseException) -> float:
        raise KeyError("no such delay")

    @jobs.handler(max_attempts=5, backoff=broken, timeout=timeout)
    async def bad() -> None:
        if timeout is None:
            raise ValueError("x")
        await asyncio.sleep(60)

    async with Worker(jobs):
        job = await failed(await bad.enqueue())
    assert job.errors == 1
    first = "ValueError: x" if timeout is None else "timed out after 10ms"
    assert job.error == f"{first}; then the backoff function raised KeyError: 'no such delay'"
    (record,) = (one for one in caplog.records if one.levelname == "ERROR")
    assert getattr(record, "job_id", None) == job.id
    for shown in (logging.Formatter().format(record), job.attempts[-1].traceback or ""):
        assert timeout is not None or "ValueError: x\nThe backoff function raised an error too:\n" in shown
        assert 'in broken\n    raise KeyError("no such delay")' in shown, "the traceback of the backoff function"


async def test_a_backoff_function_may_raise_after_an_error_that_takes_no_notes(jobs: Client) -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    @jobs.handler(backoff=lambda attempt, error: 1 / 0)
    async def bad() -> None:
        raise Frozen("x")

    async with Worker(jobs):
        job = await failed(await bad.enqueue())
    assert job.error == "Frozen: x; then the backoff function raised ZeroDivisionError: division by zero"


# ---------------------------------------------------------------------------------------------------- payloads


async def test_a_payload_that_does_not_fit_is_neither_in_the_error_nor_in_a_log(
    jobs: Client, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler()
    async def paint(color: Color, model: Model) -> None: ...

    payloads = [
        {"color": "secret", "model": {"number": 1}},
        {"color": "red", "model": {"number": "secret"}},
        {"color": "red", "model": "secret"},
        "secret",
    ]
    caplog.set_level("DEBUG", "jobmill")
    async with Worker(jobs):
        # A client without the handler, which would refuse them.
        writer = jobmill.connect(store=jobs.store)
        enqueued = [await writer.enqueue("paint", payload) for payload in payloads]
        for one in enqueued:
            job = await failed(one)
            assert "secret" not in (job.error or "") + repr(job.attempts)
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"strict": {"odd": 7777772}}, "odd: assertion_error - at `$.strict`"),
        ({"strict": {"custom": 7777771}}, "custom: unknown_number - at `$.strict`"),
        ({"strict": {"known": 7777771}}, "KeyError"),
        ({"strict": {"total": -7777771}}, "total: greater_than - at `$.strict`"),
        (
            {"strict": {"models": {"7777771": {"number": []}}}},
            "models.[...].number: Input should be a valid integer - at `$.strict`",
        ),
        ({"strict": {"7777771": 1}}, "[...]: Extra inputs are not permitted - at `$.strict`"),
        ({"checked": {"n": 7777771}}, "ValueError - at `$.checked`"),
        ({"checked": {"n": 7777772}}, "ValidationError"),
        ({"one": 7777771}, "Invalid enum value - at `$.one`"),
        ({"one": "7777771 - at x"}, "Expected `int`, got `str` - at `$.one`"),
        ([7777771], "Expected `object`, got `array`"),
        ({"7777771": 1}, "Object contains an unknown field"),
        ({"7777771` - at `$.7777771": 1}, "Object contains an unknown field"),
        ({"sealed": {"7777771": 1}}, "Object contains an unknown field"),
        ({"colors": ["7777771 - at `$.7777771`"]}, "Invalid enum value - at `$.colors[0]`"),
        ({"numbers": {"7777771": "x"}}, "Expected `int`, got `str` - at `$.numbers[...]`"),
    ],
)
async def test_the_error_of_a_payload_names_declared_fields_only(
    jobs: Client, payload: object, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler()
    async def take(
        strict: Strict | None = None,
        checked: Checked | None = None,
        one: Literal[1] = 1,
        sealed: Sealed | None = None,
        colors: list[Color] | None = None,
        numbers: dict[str, int] | None = None,
    ) -> None: ...

    async with Worker(jobs):
        job = await failed(await jobmill.connect(store=jobs.store).enqueue("take", payload))
    assert job.error == f"payload: expected arguments that fit the handler's annotations; {why}"
    assert [one.id async for one in jobs.find_all(error_type="jobmill.errors.InvalidValue")] == [job.id]
    assert "777777" not in caplog.text + (job.error or "") + repr(job.attempts)


async def test_a_caller_sees_what_is_wrong_with_the_own_payload(jobs: Client) -> None:
    @jobs.handler()
    async def take(strict: Strict) -> None: ...

    with pytest.raises(jobmill.InvalidValue, match="odd: Assertion failed, bad value 2"):
        await jobs.enqueue("take", {"strict": {"odd": 2}})
    with pytest.raises(jobmill.InvalidValue, match="payload: expected arguments that fit .*known"):
        await jobs.enqueue("take", {"strict": {"known": 2}})
