"""How payloads become the arguments of a handler: typed, validated, bound by name, or whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest
from msgspec import Meta, Raw, Struct

import jobmill
from jobmill import Client, Context, InvalidValue
from jobmill.handlers.conversion import to_plain
from jobmill.handlers.signature import Arguments


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def crossed(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call after they have been JSON."""
    arguments = Arguments(fn)
    return arguments.decode(Raw(arguments.encode(args, kwargs)))


def arrived(fn: Callable[..., Any], payload: bytes) -> dict[str, Any]:
    """The arguments that a payload from elsewhere becomes."""
    return Arguments(fn).decode(Raw(payload))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Shape:
    name: str
    points: list[Point] = field(default_factory=list)
    colour: Colour = Colour.RED


class Address(Struct):
    street: str
    zip: str | None = None


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Model:
    """What pydantic's BaseModel offers."""

    def __init__(self, name: str, age: int) -> None:
        self.name, self.age = name, age

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and (self.name, self.age) == (other.name, other.age)

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"name": self.name, "age": self.age}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("age"), int):
            raise ValueError("age: a number is required")
        return cls(**value)


def takes_colour(value: Colour) -> None: ...
def takes_level(value: Level) -> None: ...
def takes_point(value: Point) -> None: ...
def takes_shape(value: Shape) -> None: ...
def takes_address(value: Address) -> None: ...
def takes_movie(value: Movie) -> None: ...
def takes_model(value: Model) -> None: ...
def takes_models(value: list[Model]) -> None: ...
def takes_datetime(value: datetime) -> None: ...
def takes_date(value: date) -> None: ...
def takes_timedelta(value: timedelta) -> None: ...
def takes_uuid(value: UUID) -> None: ...
def takes_decimal(value: Decimal) -> None: ...
def takes_literal(value: Literal["a", "b"]) -> None: ...
def takes_optional(value: int | None) -> None: ...
def takes_tuple(value: tuple[int, str]) -> None: ...
def takes_dict(value: dict[str, list[Point]]) -> None: ...
def takes_set(value: set[str]) -> None: ...
def takes_short(value: Annotated[str, Meta(max_length=3)]) -> None: ...
def takes_int(value: int) -> None: ...
def takes_float(value: float) -> None: ...
def takes_anything(value) -> None: ...  # type: ignore[no-untyped-def]


ID = UUID("0123456789abcdef0123456789abcdef")
CROSSES: list[tuple[Callable[..., Any], Any]] = [
    (takes_colour, Colour.BLUE),
    (takes_level, Level.HIGH),
    (takes_point, Point(1, 2)),
    (takes_shape, Shape("dot", [Point(1)], Colour.BLUE)),
    (takes_address, Address("Main Street")),
    (takes_movie, {"title": "Metropolis"}),
    (takes_movie, {"title": "Metropolis", "year": 1927}),
    (takes_model, Model("ada", 36)),
    (takes_models, [Model("ada", 36), Model("bob", 1)]),
    (takes_datetime, datetime(2026, 5, 1, 12, tzinfo=UTC)),
    (takes_datetime, datetime(2026, 5, 1, 12)),
    (takes_date, date(2026, 5, 1)),
    (takes_timedelta, timedelta(hours=1, microseconds=5)),
    (takes_uuid, ID),
    (takes_decimal, Decimal("1.10")),
    (takes_literal, "b"),
    (takes_optional, None),
    (takes_optional, 5),
    (takes_tuple, (1, "a")),
    (takes_dict, {"a": [Point(1), Point(2, 3)]}),
    (takes_float, 1.5),
    (takes_float, 2),
    (takes_anything, {"a": [1, None, "x", {"b": 2.5}]}),
]


@pytest.mark.parametrize(("fn", "value"), CROSSES)
def test_a_typed_argument_arrives_as_what_it_was(fn: Callable[..., Any], value: Any) -> None:
    back = crossed(fn, value=value)["value"]
    assert back == value
    assert type(back) is type(value) or fn is takes_float


@pytest.mark.parametrize(
    ("fn", "plain", "value"),
    [
        (takes_point, {"x": 1}, Point(1)),
        (takes_datetime, "2026-05-01T12:00:00Z", datetime(2026, 5, 1, 12, tzinfo=UTC)),
        (takes_uuid, str(ID), ID),
        (takes_colour, "red", Colour.RED),
        (takes_model, {"name": "ada", "age": 36}, Model("ada", 36)),
        (takes_set, ["a", "b", "a"], {"a", "b"}),
        (takes_tuple, [1, "a"], (1, "a")),
    ],
)
def test_plain_values_are_taken_where_they_fit_the_annotation(fn: Callable[..., Any], plain: Any, value: Any) -> None:
    assert crossed(fn, value=plain) == {"value": value}


MISFITS: list[tuple[Callable[..., Any], Any, str]] = [
    (takes_int, "5", r"Expected `int`, got `str` - at `\$.value`"),
    (takes_int, 1.5, "Expected `int`, got `float`"),
    (takes_colour, "green", "Invalid enum value 'green'"),
    (takes_point, {"y": 1}, "missing required field `x`"),
    (takes_datetime, "tomorrow", "Invalid RFC3339"),
    (takes_uuid, "not-one", "Invalid UUID"),
    (takes_movie, {"year": 1927}, "missing required field `title`"),
    (takes_model, {"name": "ada"}, "age: a number is required"),
    (takes_literal, "c", "Invalid enum value 'c'"),
    (takes_short, "long", "Expected `str` of length <= 3"),
    (takes_tuple, [1], "Expected `array` of length 2"),
]


@pytest.mark.parametrize(("fn", "value", "message"), MISFITS)
async def test_a_payload_that_does_not_fit_is_refused_at_enqueue(
    jobs: Client, fn: Callable[..., Any], value: Any, message: str
) -> None:
    handler: Any = jobs.handler(name="typed")(fn)
    expected = f"payload: expected arguments that fit the handler's annotations, got '.*'; .*{message}"
    with pytest.raises(InvalidValue, match=expected):
        await handler.enqueue(value=value)
    with pytest.raises(InvalidValue, match=expected):
        await jobs.enqueue("typed", {"value": value})
    assert await jobs.count() == []


class Opaque:
    pass


def takes_opaque(value: Opaque) -> None: ...


def test_a_type_that_nobody_can_make_of_json_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidValue, match="cannot convert JSON to Opaque"):
        arrived(takes_opaque, b'{"value":1}')
    with pytest.raises(
        InvalidValue, match=r"payload.value: expected a JSON value, got <.*Opaque.*>; Opaque is not JSON"
    ):
        crossed(takes_opaque, value=Opaque())


# ---------------------------------------------------------------------------------------------------- binding


def both(a: int, b: int = 5, *, c: str = "x") -> None: ...


def test_only_what_was_given_is_stored_and_defaults_are_filled_in_when_it_runs() -> None:
    arguments = Arguments(both)
    assert arguments.encode((1,), {}) == b'{"a":1}'
    assert arguments.encode((1, 2), {"c": "y"}) == b'{"a":1,"b":2,"c":"y"}'
    assert arguments.decode(Raw(b'{"a":1}')) == {"a": 1, "b": 5, "c": "x"}
    assert arguments.decode(Raw(b' { "c" : "z" , "a" : 1 } ')) == {"a": 1, "b": 5, "c": "z"}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"arguments as in \(a: 'int', b: 'int' = 5, \*, c: 'str' = 'x'\).*, got {}; missing a required"),
        ((1, 2, 3), {}, "got {0: 1, 1: 2, 2: 3}; too many positional arguments"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
        ((1,), {"d": 1}, "got {0: 1, 'd': 1}; got an unexpected keyword argument 'd'$"),
        ((1,), {"delay": 1}, r"argument 'delay'; options come before: \.options\(delay=…\)\.enqueue\(…\)"),
        ((1,), {"within": 1, "id": 2}, r"options come before: \.options\(within=…, id=…\)\.enqueue\(…\)"),
    ],
)
def test_arguments_that_do_not_fit_the_signature(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message) as caught:
        Arguments(both).encode(args, kwargs)
    assert caught.value.field == "payload"


def test_an_argument_from_elsewhere_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidValue, match="Object contains unknown field `d`"):
        arrived(both, b'{"a":1,"d":2}')


@pytest.mark.parametrize("payload", [b"{", b"", b'{"a":1} x', b'"\xff"', b"[" * 5_000, b"nonsense"])
def test_a_payload_that_is_not_json_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidValue, match="payload: expected arguments that fit"):
        arrived(both, payload)
    with pytest.raises(InvalidValue, match="payload: expected arguments that fit"):
        arrived(whole, payload)


def extra(a: int, **rest: int) -> None: ...


def extra_any(self: int = 1, **kwargs) -> None: ...  # type: ignore[no-untyped-def]


def test_more_arguments_where_the_function_takes_any() -> None:
    assert crossed(extra, 1, b=2, rest=3) == {"a": 1, "b": 2, "rest": 3}
    assert crossed(extra_any, kwargs={"x": [1]}) == {"self": 1, "kwargs": {"x": [1]}}
    assert arrived(extra, b'{"a":1}') == {"a": 1}


def test_more_arguments_are_validated_too() -> None:
    with pytest.raises(InvalidValue, match="Expected `int`, got `str`"):
        crossed(extra, 1, b="x")


async def test_names_of_parameters_are_free(jobs: Client) -> None:
    @jobs.handler()
    def odd(self: int, args: int, kwargs: int, within: int, cls: int, _x: int = 6) -> None: ...

    enqueued = await odd.enqueue(self=1, args=2, kwargs=3, within=4, cls=5)
    assert (await enqueued.job()).payload == {"self": 1, "args": 2, "kwargs": 3, "within": 4, "cls": 5}
    await jobs.enqueue("odd", {"self": 1, "args": 2, "kwargs": 3, "within": 4, "cls": 5})
    draft = odd.options(delay=1).draft(self=1, args=2, kwargs=3, within=4, cls=5)
    assert odd.arguments.decode(Raw(draft.payload_json))["_x"] == 6


def with_context(ctx: Context, a: int) -> None: ...


def test_a_context_is_no_part_of_the_payload() -> None:
    assert crossed(with_context, 1) == {"a": 1}
    with pytest.raises(InvalidValue, match=r"arguments as in \(a: 'int'\)"):
        crossed(with_context, 1, ctx=1)


def collects(items: list[int] = [], table: dict[str, list[int]] = {"a": [1]}) -> None: ...  # noqa: B006


def test_mutable_defaults_are_not_shared() -> None:
    arguments = Arguments(collects)
    first = arguments.decode(Raw(b"{}"))
    first["items"].append(1)
    first["table"]["a"].append(2)
    assert arguments.decode(Raw(b"{}")) == {"items": [], "table": {"a": [1]}}


MISSING = object()


def sentinel(value: Any = MISSING, when: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


def test_other_defaults_arrive_as_the_objects_that_they_are() -> None:
    assert arrived(sentinel, b"{}") == {"value": MISSING, "when": None}
    assert arrived(sentinel, b"{}")["value"] is MISSING


# ---------------------------------------------------------------------------------------------------- whole payloads


def whole(payload: Any) -> None: ...


def whole_of_ints(payload: list[int], more: int = 5, *, other: str = "x") -> None: ...


def whole_and_required(payload: Any, more: int) -> None: ...


def nothing() -> None: ...


def all_optional(a: int = 1) -> None: ...


def whole_and_rest(ctx: Context, payload: Any, **rest: Any) -> None: ...


WHOLE: list[tuple[Callable[..., Any], bytes, dict[str, Any]]] = [
    (whole, b"[1,2]", {"payload": [1, 2]}),
    (whole, b'"text"', {"payload": "text"}),
    (whole, b" 5", {"payload": 5}),
    (whole, b"null", {"payload": None}),
    (whole, b'{"payload":{"a":1}}', {"payload": {"a": 1}}),
    (nothing, b"null", {}),
    (all_optional, b" null ", {"a": 1}),
    (whole_of_ints, b"[1]", {"payload": [1], "more": 5, "other": "x"}),
    (whole_of_ints, b'{"payload":[1],"more":6}', {"payload": [1], "more": 6, "other": "x"}),
    (whole_and_rest, b"[1]", {"payload": [1]}),
    (whole_and_rest, b'{"payload":1,"a":2}', {"payload": 1, "a": 2}),
]


@pytest.mark.parametrize(("fn", "payload", "expected"), WHOLE)
def test_a_payload_that_is_no_object_arrives_whole(
    fn: Callable[..., Any], payload: bytes, expected: dict[str, Any]
) -> None:
    assert arrived(fn, payload) == expected


@pytest.mark.parametrize(
    ("fn", "payload", "message"),
    [
        (whole, b'{"a":1}', "unknown field `a`"),
        (whole_of_ints, b'["x"]', r"Expected `int`, got `str` - at `\$.payload\[0\]`"),
        (whole_and_required, b"[1]", "missing required field `more`"),
        (both, b"[1]", "Expected `object`, got `array`"),
        (both, b"null", "missing required field"),
    ],
)
def test_a_whole_payload_has_to_fit_as_well(fn: Callable[..., Any], payload: bytes, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        arrived(fn, payload)


async def test_a_whole_payload_can_be_enqueued_by_name_under_its_handlers_options(jobs: Client) -> None:
    jobs.handler(name="sum", queue="maths", max_attempts=7)(whole_of_ints)
    job = await (await jobs.enqueue("sum", [1, 2], priority=3)).job()
    assert (job.payload, job.queue, job.priority, job.options.max_attempts) == ([1, 2], "maths", 3, 7)
    with pytest.raises(InvalidValue, match="Expected `int`, got `str`"):
        await jobs.enqueue("sum", ["x"])
    jobs.handler(name="both")(both)
    with pytest.raises(InvalidValue, match="Expected `object`, got `int`"):
        await jobs.enqueue("both", 5)


# ---------------------------------------------------------------------------------------------------- plain values


def test_what_msgspec_can_print_is_printed_and_the_rest_is_refused_as_ever() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert to_plain({"a": (now, Point(1)), "b": Colour.RED}, "payload") == {
        "a": ["2026-05-01T00:00:00Z", {"x": 1, "y": 0}],
        "b": "red",
    }
    assert to_plain({Colour.RED: 1, ID: 2}, "payload") == {"red": 1, str(ID): 2}
    for bad in ({1, 2}, b"bytes", float("nan"), bytearray(b"x"), {1: 2}, range(3)):
        with pytest.raises(InvalidValue, match="payload"):
            to_plain({"bad": bad}, "payload")
        with pytest.raises(InvalidValue, match="payload"):
            to_plain({"when": now, "bad": bad}, "payload")


@dataclass
class Holder:
    value: Any


@pytest.mark.parametrize("bad", [float("nan"), b"bytes", "\ud83d", {1: 2}, 2**64, Opaque()])
def test_what_is_not_json_is_refused_inside_of_known_types_too(bad: Any) -> None:
    with pytest.raises(InvalidValue, match="payload"):
        to_plain({"held": [Holder(bad)]}, "payload")


def test_a_cycle_through_known_types_is_refused() -> None:
    inside: list[Any] = []
    inside.append(Holder(inside))
    with pytest.raises(InvalidValue, match="payload"):
        to_plain(inside, "payload")
    mixed: list[Any] = [Holder(1)]
    mixed.append(mixed)
    with pytest.raises(InvalidValue, match="payload"):
        to_plain(mixed, "payload")


def test_a_value_that_stands_for_more_than_any_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.core.payload.MAX_BYTES", 10_000)
    bomb: list[Any] = [Point(1)]
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(jobmill.PayloadTooLarge):
        to_plain(bomb, "payload")
