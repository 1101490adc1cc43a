"""Annotations: constraints are enforced or refused, and results that can never be stored are refused."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import jobmill
from jobmill import Client


class Plain: ...


class Base: ...


@dataclasses.dataclass
class Derived(Base):
    n: int


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int


class Typed(TypedDict):
    n: int


class ConstrainedTyped(TypedDict):
    n: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class Constrained:
    n: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class ConstrainedByDefault:
    n: int = pydantic.Field(gt=0)


class StructWithDefault(msgspec.Struct):
    n: int = pydantic.Field(gt=0)


class PointWithDefault(NamedTuple):
    n: int = pydantic.Field(gt=0)


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    n: Annotated[int, pydantic.Field(gt=0)]


class Model(pydantic.BaseModel):
    n: Annotated[int, pydantic.Field(gt=0)]


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def returning(kind: Any) -> Any:
    def fn() -> None: ...

    fn.__annotations__["return"] = kind
    return fn


def taking(kind: Any) -> Any:
    def fn(n: object) -> None: ...

    fn.__annotations__["n"] = kind
    return fn


@pytest.mark.parametrize(
    "kind",
    [
        bytes,
        set,
        frozenset[int],
        complex,
        range,
        ValueError,
        Plain,
        Path,
        list[bytes],
        dict[str, set[int]],
        Plain | None,
        tuple[int, Plain],
        Annotated[bytes, "a file"],
        type,
    ],
)
def test_a_result_that_can_never_be_stored_is_refused_at_the_definition(jobs: Client, kind: Any) -> None:
    with pytest.raises(jobmill.InvalidValue, match="a return annotation whose values can be stored as JSON"):
        jobs.handler(returning(kind))
    jobs.handler(keep_result=False)(returning(kind))


@pytest.mark.parametrize(
    "kind",
    [
        None,
        Any,
        object,
        int,
        str | None,
        dict[str, Any],
        list[int],
        tuple[int, ...],
        Iterable[int],
        Mapping[str, int],
        datetime.datetime,
        uuid.UUID,
        decimal.Decimal,
        Color,
        Point,
        Typed,
        Derived,
        Base,
        Model,
        int | bytes,
    ],
)
def test_other_results_are_not_refused(jobs: Client, kind: Any) -> None:
    jobs.handler(returning(kind))


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[int, pydantic.Field(gt=0)],
        list[Annotated[int, pydantic.Field(gt=0)]],
        Annotated[int, pydantic.AfterValidator(abs)] | None,
        pydantic.PositiveInt,
        Constrained,
        ConstrainedByDefault,
        list[ConstrainedByDefault],
        StructWithDefault,
        PointWithDefault,
        list[ConstrainedTyped],
    ],
)
def test_a_constraint_that_would_be_ignored_is_refused(jobs: Client, kind: Any) -> None:
    with pytest.raises(
        jobmill.InvalidValue, match="constraints that can be checked for the parameter 'n'.*msgspec.Meta"
    ):
        jobs.handler(taking(kind))
    with pytest.raises(jobmill.InvalidValue, match=r"constraints that can be checked for the result.*msgspec.Meta"):
        jobs.handler(returning(kind))
    jobs.handler(keep_result=False)(returning(kind))


def test_a_dataclass_of_pydantic_is_refused_as_a_parameter_only(jobs: Client) -> None:
    with pytest.raises(jobmill.InvalidValue, match="constraints that can be checked for the parameter 'n'"):
        jobs.handler(taking(PydanticDataclass))
    jobs.handler(returning(PydanticDataclass))  # it has checked its values when they were created


def test_a_constraint_as_the_default_of_a_parameter_is_refused(jobs: Client) -> None:
    def fn(n: int = pydantic.Field(gt=0)) -> None: ...

    with pytest.raises(
        jobmill.InvalidValue, match=r"checked for the parameter 'n'.*Annotated\[int, msgspec.Meta\(gt=0\)\]"
    ):
        jobs.handler(fn)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Annotated[int, msgspec.Meta(gt=0)], 1, 0),
        (list[Annotated[int, msgspec.Meta(gt=0)]], [1], [0]),
        (Annotated[str, msgspec.Meta(pattern="^a")], "ab", "b"),
        (Model, {"n": 1}, {"n": 0}),
        (Annotated[int, "the number"], 1, "x"),
    ],
)
async def test_constraints_of_msgspec_and_of_models_are_enforced(jobs: Client, kind: Any, good: Any, bad: Any) -> None:
    handler = jobs.handler(taking(kind))
    await handler.enqueue(n=good)
    with pytest.raises(jobmill.InvalidValue):
        await handler.enqueue(n=bad)


async def test_object_means_any_json(jobs: Client) -> None:
    given = []

    @jobs.handler()
    async def free(one: object, many: list[object], **rest: object) -> None:
        given.append((one, many, rest))

    await free.enqueue(1, [None, "x"], other={"a": [1]})
    from jobmill.worker.worker import Worker

    async with Worker(jobs):
        await (await free.enqueue({"a": 1}, [[]], more=2.5)).result(timeout=10)
    assert ({"a": 1}, [[]], {"more": 2.5}) in given
