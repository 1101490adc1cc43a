"""Models of pydantic as payloads, results, steps and signals: what was stored is read back as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
import pytest

import jobmill
from jobmill import Client, Context, InvalidValue
from jobmill.worker.worker import Worker


class Item(pydantic.BaseModel, extra="forbid"):
    item_no: int = pydantic.Field(alias="itemNo")


class Order(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    items: list[Item] = []
    note: str = pydantic.Field("", alias="aNote")
    city: str = pydantic.Field("", validation_alias=pydantic.AliasPath("address", "city"))


class Approval(pydantic.BaseModel):
    by: str
    ok: bool


class Card(pydantic.BaseModel):
    kind: Literal["card"]


class Bank(pydantic.BaseModel):
    kind: Literal["bank"]


@dataclasses.dataclass
class Seat:
    number: int


BY_ALIAS = {"orderId": 7, "items": [{"itemNo": 1}], "aNote": "hi", "address": {"city": "Lisbon"}}
ORDER = Order.model_validate(BY_ALIAS)


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def taking(kind: Any) -> Callable[..., None]:
    def fn(n: object) -> None: ...

    fn.__annotations__["n"] = kind
    return fn


async def result_of(jobs: Client, enqueued: jobmill.Enqueued[Any]) -> Any:
    async with Worker(jobs):
        return await enqueued.result(timeout=10)


async def error_of(jobs: Client, enqueued: jobmill.Enqueued[Any]) -> str:
    with pytest.raises(jobmill.JobFailed) as caught:
        await result_of(jobs, enqueued)
    return str(caught.value)


class TestAliases:
    async def test_payload_and_result(self, jobs: Client) -> None:
        @jobs.handler
        async def same(order: Order) -> Order:
            assert order == ORDER
            return order

        assert await result_of(jobs, await same.enqueue(order=ORDER)) == ORDER

    async def test_another_program_writes_aliases(self, jobs: Client) -> None:
        @jobs.handler
        async def same(order: Order) -> Order:
            return order

        assert await result_of(jobs, await jobs.enqueue("same", {"order": BY_ALIAS})) == ORDER

    async def test_the_next_job_of_a_flow(self, jobs: Client) -> None:
        @jobs.handler
        async def charge() -> Order:
            return ORDER

        @jobs.handler
        async def ship(order: Order) -> str:
            return order.city

        assert await result_of(jobs, await ship.draft(charge.draft().result).enqueue()) == "Lisbon"

    async def test_an_error_names_the_field_without_its_value(self, jobs: Client) -> None:
        @jobs.handler
        async def same(order: Order) -> None: ...

        old_version = jobmill.connect(store=jobs.store)
        wrong = await old_version.enqueue("same", {"order": {"order_id": "secret"}})
        error = await error_of(jobs, wrong)
        assert "order_id: Input should be a valid integer" in error
        assert "secret" not in error


class Crossed(pydantic.BaseModel):
    name: str = pydantic.Field(alias="title")
    title: str = pydantic.Field(alias="heading")


class CrossedInside(pydantic.BaseModel):
    inner: list[Crossed]


class WrittenByAlias(Crossed, serialize_by_alias=True): ...


class OwnNameFirst(pydantic.BaseModel):
    name: str = pydantic.Field(validation_alias=pydantic.AliasChoices("name", "title"))
    title: str


class TestAliasesThatAreNamesOfFields:
    @pytest.mark.parametrize("kind", [Crossed, CrossedInside])
    def test_the_handler_is_refused(self, jobs: Client, kind: Any) -> None:
        with pytest.raises(InvalidValue, match=r"Crossed\.name has the alias 'title'; rename one of them"):
            jobs.handler(taking(kind))

    @pytest.mark.parametrize("kind", [WrittenByAlias, OwnNameFirst])
    async def test_others_keep_their_values(self, jobs: Client, kind: Any) -> None:
        given: list[Any] = []

        def take(n: object) -> None:
            given.append(n)

        one = kind.model_validate({"name": "n", "title": "t"}, by_name=True, by_alias=False)
        await result_of(jobs, await jobs.handler(taking_as(take, kind)).enqueue(one))
        assert given == [one]


class WithSerializer(pydantic.BaseModel):
    one: pydantic.SecretStr
    two: Annotated[pydantic.SecretStr, pydantic.PlainSerializer(lambda value: value.get_secret_value())]
    three: list[Annotated[pydantic.SecretStr, pydantic.PlainSerializer(lambda value: value.get_secret_value())]] = []

    @pydantic.field_serializer("one")
    def _dump(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


class WithSecret(pydantic.BaseModel):
    one: int
    two: pydantic.SecretStr | None = None


class Outer(pydantic.BaseModel):
    inner: dict[str, WithSecret]


@dataclasses.dataclass
class Holder:
    inner: Outer


class TestSecrets:
    @pytest.mark.parametrize(
        "kind",
        [
            pydantic.SecretStr,
            pydantic.SecretBytes | None,
            pydantic.Secret[int],
            list[pydantic.SecretStr],
            WithSecret,
            Outer,
            Holder,
        ],
    )
    def test_a_handler_that_would_get_asterisks_is_refused(self, jobs: Client, kind: Any) -> None:
        with pytest.raises(InvalidValue, match="no secrets of pydantic in the parameter 'n'.*stored as asterisks"):
            jobs.handler(taking(kind))

    def test_a_result_that_would_be_asterisks_is_refused(self, jobs: Client) -> None:
        def fn() -> WithSecret: ...  # type: ignore[empty-body]

        with pytest.raises(InvalidValue, match="no secrets of pydantic in the result"):
            jobs.handler(fn)
        jobs.handler(keep_result=False)(fn)

    async def test_a_serializer_of_the_user_stores_the_secret(self, jobs: Client) -> None:
        @jobs.handler
        async def same(given: WithSerializer) -> str:
            return "".join(one.get_secret_value() for one in (given.one, given.two, *given.three))

        given = WithSerializer.model_validate({"one": "a", "two": "b", "three": ["c"]})
        assert await result_of(jobs, await same.enqueue(given=given)) == "abc"


class TestUnions:
    @pytest.mark.parametrize(
        "kind",
        [
            Card | Bank,
            list[Card | Bank | None],
            Card | int,
            Annotated[Card | Bank, pydantic.Field(discriminator="kind")],
        ],
    )
    def test_the_error_says_what_to_write_instead(self, jobs: Client, kind: Any) -> None:
        with pytest.raises(InvalidValue, match=r"put the union into a model, for example into pydantic\.RootModel"):
            jobs.handler(taking(kind))

    async def test_the_advice_works(self, jobs: Client) -> None:
        class Payment(pydantic.RootModel[Card | Bank]): ...

        given: list[Any] = []

        def pay(n: Payment) -> None:
            given.append(n.root)

        await result_of(jobs, await jobs.handler(taking_as(pay, Payment)).enqueue(Payment(Bank(kind="bank"))))
        assert given == [Bank(kind="bank")]


def taking_as(fn: Any, kind: Any) -> Any:
    fn.__annotations__["n"] = kind  # a class of a function cannot be found by its name
    return fn


class TestSignals:
    @pytest.mark.parametrize("kind", [Approval, Approval | None])
    async def test_a_model(self, jobs: Client, kind: Any) -> None:
        @jobs.handler
        async def ship(context: Context) -> str:
            answer = await context.wait_for("approved", kind)
            assert isinstance(answer, Approval)
            return answer.by

        shipped = await ship.enqueue()
        await jobs.signal(shipped.id, "approved", Approval(by="ann", ok=True))
        assert await result_of(jobs, shipped) == "ann"

    async def test_a_list_of_models(self, jobs: Client) -> None:
        @jobs.handler
        async def ship(context: Context) -> list[str]:
            return [one.by for one in await context.wait_for("approved", list[Approval]) or ()]

        shipped = await ship.enqueue()
        await jobs.signal(shipped.id, "approved", [Approval(by="ann", ok=True)])
        assert await result_of(jobs, shipped) == ["ann"]

    @pytest.mark.parametrize("kind", [Approval, Seat])
    async def test_a_wrong_signal_is_not_in_the_error(self, jobs: Client, kind: Any) -> None:
        @jobs.handler(max_attempts=1)
        async def ship(context: Context) -> None:
            await context.wait_for("approved", kind)

        shipped = await ship.enqueue()
        await jobs.signal(shipped.id, "approved", {"by": "secret", "number": "secret", "ok": "secret"})
        error = await error_of(jobs, shipped)
        assert "signal 'approved': expected a value that fits" in error
        assert "secret" not in error
        assert "secret" not in str((await shipped.job()).attempts)

        await jobs.requeue(shipped.id)  # clears the signal, so that the right one counts
        right = Approval(by="ann", ok=True) if kind is Approval else Seat(1)
        assert await jobs.signal(shipped.id, "approved", right)
        await result_of(jobs, shipped)

    async def test_a_type_that_no_signal_can_have_fails_before_the_wait(self, jobs: Client) -> None:
        @jobs.handler(max_attempts=1)
        async def ship(context: Context) -> None:
            await context.wait_for("approved", Card | Bank)  # type: ignore[arg-type]

        assert "put the union into a model" in await error_of(jobs, await ship.enqueue())


class TestSteps:
    @pytest.mark.parametrize("annotated", [True, False])
    @pytest.mark.parametrize("is_sync", [True, False])
    async def test_the_first_run_gets_what_later_runs_get(self, jobs: Client, annotated: bool, is_sync: bool) -> None:
        got: list[Any] = []

        def reserve():  # type: ignore[no-untyped-def]
            return Seat(7)

        if annotated:
            reserve.__annotations__["return"] = Seat

        @jobs.handler
        async def book(context: Context) -> None:
            got.append(await context.step("reserve", reserve))
            await context.sleep("a moment", "1ms")

        @jobs.handler
        def book_sync(context: Context) -> None:
            got.append(context.sync.step("reserve", reserve))
            context.sync.sleep("a moment", "1ms")

        await result_of(jobs, await (book_sync if is_sync else book).enqueue())
        assert got == [Seat(7) if annotated else {"number": 7}] * 2

    async def test_a_result_that_does_not_fit_the_annotation_is_not_in_the_error(self, jobs: Client) -> None:
        def reserve() -> int:
            return "secret"  # type: ignore[return-value]

        @jobs.handler(max_attempts=1)
        async def book(context: Context) -> None:
            await context.step("reserve", reserve)

        error = await error_of(jobs, await book.enqueue())
        assert "Expected `int`, got `str`" in error
        assert "secret" not in error
