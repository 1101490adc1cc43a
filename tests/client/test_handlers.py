"""Handlers: what a decorated function still is, and how payloads become its arguments."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta, Raw, Struct

import jobmill
from jobmill import Client, Context, Invalid
from jobmill.core.job import Job, Progress
from jobmill.core.retry import fixed
from jobmill.handlers import Arguments, ContextHandler, Handler, to_plain

if TYPE_CHECKING:
    from fractions import Fraction


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def context(told: list[Progress | str] | None = None, **fields: Any) -> Context:
    base: dict[str, Any] = {
        "id": "job-1",
        "name": "send",
        "queue": "mail",
        "payload_json": Raw(b"{}"),
        "state": "running",
        "priority": 0,
        "due_ms": 1,
        "created_ms": 1,
        "updated_ms": 1,
    }
    return Context(Job(**base | fields), (told if told is not None else list[Progress | str]()).append)


def crossed(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call after they have been JSON."""
    arguments = Arguments(fn)
    return arguments.decode(Raw(arguments.encode(args, kwargs)))


def arrived(fn: Callable[..., Any], payload: bytes) -> dict[str, Any]:
    """The arguments that a payload from elsewhere becomes."""
    return Arguments(fn).decode(Raw(payload))


# ---------------------------------------------------------------------------------------------------- still a function


async def test_calling_a_handler_runs_it(jobs: Client) -> None:
    @jobs.handler()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    @jobs.handler()
    def join(*, left: str, right: str = "b") -> str:
        return left + right

    assert await add(1) == 3
    assert await add(a=1, b=1) == 2
    assert join(left="a") == "ab"
    assert await jobs.count() == []


async def test_calling_a_handler_with_a_context_runs_it(jobs: Client) -> None:
    @jobs.handler()
    async def add(ctx: Context, context: int) -> int:
        return ctx.attempt + context

    assert await add(context(errors=1), context=40) == 42
    assert await add(ctx=context(), context=1) == 2  # type: ignore[call-arg]


def test_a_call_is_not_validated(jobs: Client) -> None:
    @jobs.handler()
    def same(x: int) -> int:
        return x

    marker: Any = object()
    assert same(marker) is marker


def test_a_handler_looks_like_its_function(jobs: Client) -> None:
    @jobs.handler()
    async def greet(who: str, loud: bool = False) -> str:
        """Say hello."""
        return who

    assert (greet.__name__, greet.__doc__, greet.__module__) == ("greet", "Say hello.", __name__)
    assert greet.__qualname__.endswith("<locals>.greet")
    assert str(inspect.signature(greet)) == "(who: 'str', loud: 'bool' = False) -> 'str'"
    assert inspect.unwrap(greet) is greet.fn
    assert repr(greet).startswith("<handler 'greet' of <function ")


def test_an_async_handler_can_be_told_from_a_sync_one(jobs: Client) -> None:
    @jobs.handler()
    async def later() -> None: ...

    @jobs.handler()
    def now() -> None: ...

    assert (later.is_async, now.is_async) == (True, False)
    # Before 3.12 there is no mark that inspect itself looks at.
    told = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert (told(later), told(now)) == (True, False)


def test_a_method_can_be_a_handler(jobs: Client) -> None:
    class Mailer:
        def send(self, to: str) -> str:
            return f"to {to}"

    send = jobs.handler(name="send")(Mailer().send)
    assert send("ada") == "to ada"
    assert msgspec.json.decode(send.job(to="ada").payload_json) == {"to": "ada"}


# ---------------------------------------------------------------------------------------------------- registering


def test_handlers_are_known_by_name(jobs: Client) -> None:
    @jobs.handler()
    def plain() -> None: ...

    @jobs.handler(name="mail:send/2")
    def named() -> None: ...

    assert jobs.handlers == {"plain": plain, "mail:send/2": named}
    assert jobs.handler_named("plain") is plain
    assert (plain.name, named.name) == ("plain", "mail:send/2")


def test_a_decorator_without_options_needs_no_brackets(jobs: Client) -> None:
    @jobs.handler
    def plain(a: int) -> int:
        return a

    @jobs.handler
    def with_a_context(ctx: Context, a: int) -> int:
        return a

    assert (plain(1), with_a_context(context(), 2)) == (1, 2)
    assert (type(plain), type(with_a_context)) == (Handler, ContextHandler)
    assert list(jobs.handlers) == ["plain", "with_a_context"]


def test_a_name_that_is_not_known_is_told_with_those_that_are(jobs: Client) -> None:
    with pytest.raises(jobmill.HandlerNotFound, match="no handler named 'nope' here; known: none"):
        jobs.handler_named("nope")
    jobs.handler(name="b")(lambda: None)
    jobs.handler(name="a")(lambda: None)
    with pytest.raises(jobmill.HandlerNotFound, match="known: a, b"):
        jobs.handler_named("nope")


def test_a_second_handler_of_a_name_is_refused(jobs: Client) -> None:
    @jobs.handler()
    def send() -> None: ...

    with pytest.raises(Invalid, match=r"name: expected a name that no other handler has \(.*send has it\), got 'send'"):
        jobs.handler(name="send")(lambda: None)
    assert jobs.handlers == {"send": send}


def test_two_clients_may_have_handlers_of_one_name(jobs: Client) -> None:
    def send() -> None: ...

    other = jobmill.connect("memory://")
    assert jobs.handler()(send) is not other.handler()(send)


def test_a_handler_is_of_the_kind_that_its_function_needs(jobs: Client) -> None:
    with_context = jobs.handler(name="a")(lambda: None)

    @jobs.handler()
    def b(ctx: Context, /, x: int) -> None: ...

    assert type(with_context) is Handler
    assert type(b) is ContextHandler
    assert b.arguments.takes_context


def test_options_of_a_handler(jobs: Client) -> None:
    def own(attempt: int, error: BaseException) -> float:
        return attempt

    @jobs.handler(
        queue="mail",
        priority=4,
        max_attempts=5,
        max_crashes=1,
        timeout="30s",
        keep_succeeded=False,
        keep_failed="1d",
        backoff=own,
        concurrency=2,
        isolate=True,
    )
    def send() -> None: ...

    assert (send.options_given.queue, send.options_given.priority) == ("mail", 4)
    assert (send.policy.max_attempts, send.policy.max_crashes, send.policy.timeout_ms) == (5, 1, 30_000)
    assert send.policy.keep_succeeded.at_once
    assert send.policy.keep_failed.age_ms == 86_400_000
    assert (send.own_backoff, send.concurrency, send.isolate) == (own, 2, True)


def test_a_backoff_that_is_not_a_function_is_stored(jobs: Client) -> None:
    send = jobs.handler(name="send", backoff=5)(lambda: None)
    assert (send.own_backoff, send.policy.backoff) == (None, fixed(5))


# ---------------------------------------------------------------------------------------------------- refused functions


def positional(x: int, /) -> None: ...


def star(*args: int) -> None: ...


def context_last(x: int, ctx: Context) -> None: ...


def context_by_name(*, ctx: Context) -> None: ...


def unresolved(x: Fraction) -> None: ...


def ambiguous(x: str | datetime) -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_async() -> AsyncIterator[int]:
    yield 1


class Called:
    def __call__(self, x: int) -> None: ...


BAD_FUNCTIONS: list[tuple[Any, str]] = [
    (positional, 'parameters that can be given by name, got "x: '),
    (star, r"parameters that can be given by name, got \"\*args"),
    (context_last, 'a Context only as its first parameter, got "ctx: '),
    (context_by_name, 'a Context only as its first parameter, got "ctx: '),
    (unresolved, "annotations that can be resolved .* name 'Fraction' is not defined; import the type at module level"),
    (ambiguous, "parameters that a payload can be validated for.* more than one str-like type"),
    (yields, "a function that returns"),
    (yields_async, "a function that returns"),
    (Called, "a function that returns, not a class"),
    (Called(), "a function with a signature"),
    (partial(positional, 1), "a function with a signature"),
]


@pytest.mark.parametrize(("fn", "message"), BAD_FUNCTIONS)
def test_a_function_that_cannot_be_a_handler_is_refused_where_it_is_defined(
    jobs: Client, fn: Any, message: str
) -> None:
    with pytest.raises(Invalid, match=f"handler: expected {message}"):
        jobs.handler(name="bad")(fn)
    assert jobs.handlers == {}


# ---------------------------------------------------------------------------------------------------- typed payloads


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
    with pytest.raises(Invalid, match=expected):
        await handler.enqueue(value=value)
    with pytest.raises(Invalid, match=expected):
        await jobs.enqueue("typed", {"value": value})
    assert await jobs.count() == []


class Opaque:
    pass


def takes_opaque(value: Opaque) -> None: ...


def test_a_type_that_nobody_can_make_of_json_is_refused_with_its_name() -> None:
    with pytest.raises(Invalid, match="there is no way to make a Opaque of JSON"):
        arrived(takes_opaque, b'{"value":1}')
    with pytest.raises(Invalid, match=r"payload.value: expected a JSON value, got <.*Opaque.*>; Opaque is not JSON"):
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
        ((1,), {"d": 1}, "got {0: 1, 'd': 1}; got an unexpected keyword argument 'd'"),
    ],
)
def test_arguments_that_do_not_fit_the_signature(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        Arguments(both).encode(args, kwargs)
    assert caught.value.field == "payload"


def test_an_argument_from_elsewhere_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Invalid, match="Object contains unknown field `d`"):
        arrived(both, b'{"a":1,"d":2}')


@pytest.mark.parametrize("payload", [b"{", b"", b'{"a":1} x', b'"\xff"', b"[" * 5_000, b"nonsense"])
def test_a_payload_that_is_not_json_is_refused(payload: bytes) -> None:
    with pytest.raises(Invalid, match="payload: expected arguments that fit"):
        arrived(both, payload)
    with pytest.raises(Invalid, match="payload: expected arguments that fit"):
        arrived(whole, payload)


def extra(a: int, **rest: int) -> None: ...


def extra_any(self: int = 1, **kwargs) -> None: ...  # type: ignore[no-untyped-def]


def test_more_arguments_where_the_function_takes_any() -> None:
    assert crossed(extra, 1, b=2, rest=3) == {"a": 1, "b": 2, "rest": 3}
    assert crossed(extra_any, kwargs={"x": [1]}) == {"self": 1, "kwargs": {"x": [1]}}
    assert arrived(extra, b'{"a":1}') == {"a": 1}


def test_more_arguments_are_validated_too() -> None:
    with pytest.raises(Invalid, match="Expected `int`, got `str`"):
        crossed(extra, 1, b="x")


async def test_names_of_parameters_are_free(jobs: Client) -> None:
    @jobs.handler()
    def odd(self: int, args: int, kwargs: int, within: int, cls: int, _x: int = 6) -> None: ...

    enqueued = await odd.enqueue(self=1, args=2, kwargs=3, within=4, cls=5)
    assert (await enqueued.job()).payload == {"self": 1, "args": 2, "kwargs": 3, "within": 4, "cls": 5}
    await jobs.enqueue("odd", {"self": 1, "args": 2, "kwargs": 3, "within": 4, "cls": 5})
    draft = odd.options(delay=1).job(self=1, args=2, kwargs=3, within=4, cls=5)
    assert odd.arguments.decode(Raw(draft.payload_json))["_x"] == 6


def with_context(ctx: Context, a: int) -> None: ...


def test_a_context_is_no_part_of_the_payload() -> None:
    assert crossed(with_context, 1) == {"a": 1}
    with pytest.raises(Invalid, match=r"arguments as in \(a: 'int'\)"):
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


def whole_and_rest(ctx: Context, payload: Any, **rest: Any) -> None: ...


WHOLE: list[tuple[Callable[..., Any], bytes, dict[str, Any]]] = [
    (whole, b"[1,2]", {"payload": [1, 2]}),
    (whole, b'"text"', {"payload": "text"}),
    (whole, b" 5", {"payload": 5}),
    (whole, b"null", {"payload": None}),
    (whole, b'{"payload":{"a":1}}', {"payload": {"a": 1}}),
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
    ],
)
def test_a_whole_payload_has_to_fit_as_well(fn: Callable[..., Any], payload: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        arrived(fn, payload)


async def test_a_whole_payload_can_be_enqueued_by_name_under_its_handlers_options(jobs: Client) -> None:
    jobs.handler(name="sum", queue="maths", max_attempts=7)(whole_of_ints)
    job = await (await jobs.enqueue("sum", [1, 2], priority=3)).job()
    assert (job.payload, job.queue, job.priority, job.options.max_attempts) == ([1, 2], "maths", 3, 7)
    with pytest.raises(Invalid, match="Expected `int`, got `str`"):
        await jobs.enqueue("sum", ["x"])
    jobs.handler(name="both")(both)
    with pytest.raises(Invalid, match="Expected `object`, got `int`"):
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
        with pytest.raises(Invalid, match="payload"):
            to_plain({"bad": bad}, "payload")
        with pytest.raises(Invalid, match="payload"):
            to_plain({"when": now, "bad": bad}, "payload")


@dataclass
class Holder:
    value: Any


@pytest.mark.parametrize("bad", [float("nan"), b"bytes", "\ud83d", {1: 2}, 2**64, Opaque()])
def test_what_is_not_json_is_refused_inside_of_known_types_too(bad: Any) -> None:
    with pytest.raises(Invalid, match="payload"):
        to_plain({"held": [Holder(bad)]}, "payload")


def test_a_cycle_through_known_types_is_refused() -> None:
    inside: list[Any] = []
    inside.append(Holder(inside))
    with pytest.raises(Invalid, match="payload"):
        to_plain(inside, "payload")
    mixed: list[Any] = [Holder(1)]
    mixed.append(mixed)
    with pytest.raises(Invalid, match="payload"):
        to_plain(mixed, "payload")


def test_a_value_that_stands_for_more_than_any_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.core.payload.MAX_BYTES", 10_000)
    bomb: list[Any] = [Point(1)]
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(jobmill.PayloadTooLarge):
        to_plain(bomb, "payload")


# ---------------------------------------------------------------------------------------------------- context


def test_a_context_tells_what_the_handler_says() -> None:
    told: list[Progress | str] = []
    ctx = context(told, errors=2, claims=7)
    assert (ctx.attempt, ctx.fence, ctx.job.id, ctx.cancelled) == (3, 7, "job-1", False)
    ctx.progress(50)
    ctx.progress(99.5, "nearly")
    ctx.log("a line")
    ctx.log({"a": 1})
    assert told == [Progress(50), Progress(99.5, "nearly"), "a line", "{'a': 1}"]
    ctx.cancel()
    assert ctx.cancelled


def test_what_no_store_could_hold_is_told_as_text_that_it_can() -> None:
    told: list[Progress | str] = []
    ctx = context(told)
    message: Any = 5
    ctx.progress(1, message)
    ctx.progress(1, "a\x00\ud83d")
    ctx.log("b\x00\udc00")
    assert told == [Progress(1, "5"), Progress(1, "a\ufffd?"), "b\ufffd?"]


@pytest.mark.parametrize("value", [-1, 101, float("nan"), "50", None])
def test_progress_outside_of_0_to_100_is_refused(value: Any) -> None:
    told: list[Progress | str] = []
    with pytest.raises(Invalid, match="progress: expected a number from 0 to 100, got "):
        context(told).progress(value)
    assert told == []


def test_snoozing_ends_the_run() -> None:
    with pytest.raises(jobmill.Snooze) as caught:
        context().snooze("5m")
    assert caught.value.delay == "5m"
