"""Tasks: those of Django's own tests (see cases_ported.py for their licence), and some that use the database."""

from __future__ import annotations

import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import translation

import jobmill
from jobmill.django import JobmillContext, recurring, task
from jobmill.django.interface import TaskContext
from tests.django.shop.models import Order


@task()
def noop_task(*args: Any, **kwargs: Any) -> None:
    return None


@task
def noop_task_from_bare_decorator(*args: Any, **kwargs: Any) -> None:
    return None


@task()
async def noop_task_async(*args: Any, **kwargs: Any) -> None:
    return None


@task()
def calculate_meaning_of_life() -> int:
    return 42


@task()
def failing_task_value_error() -> None:
    raise ValueError("This Task failed due to ValueError")


@task()
def failing_task_system_exit() -> None:
    raise SystemExit("This Task failed due to SystemExit")


@task()
def failing_task_keyboard_interrupt() -> None:
    raise KeyboardInterrupt("This Task failed due to KeyboardInterrupt")


@task()
def complex_exception() -> None:
    raise ValueError(ValueError("This task failed"))


@task(max_attempts=3)
def complex_return_value() -> Any:
    return lambda: True


@task(takes_context=True)
def get_task_id(context: Any) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
def test_context(context: Any, attempt: int) -> None:
    assert isinstance(context, TaskContext)
    assert context.attempt == attempt


# ---------------------------------------------------------------------------------------------------- our own

runs: list[Any] = []


@task(takes_context=True, max_attempts=3, backoff="1ms")
def succeeds_at_the_third_attempt(context: JobmillContext) -> int:
    runs.append(context.attempt)
    context.jobmill.log(f"attempt {context.attempt}")
    if context.attempt < 3:
        raise KeyError(context.attempt)
    return int(context.attempt)


@task(max_attempts=3)
def gives_up() -> None:
    raise jobmill.Fail("there is no such customer")


@task(max_attempts=3, backoff="1ms", retry_on=(LookupError, ValueError), fail_on=UnicodeError)
def raises(what: str) -> None:
    raise {"value": TypeError, "key": KeyError, "unicode": UnicodeError}[what](what)


@task(takes_context=True)
def say_workers(context: JobmillContext) -> list[str]:
    return list(context.task_result.worker_ids)


@task()
def count_orders() -> int:
    return int(Order.objects.count())


@task()
async def count_orders_async() -> int:
    return int(await Order.objects.acount())


@task()
def wait_for_lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock_shared(42), pg_advisory_unlock_shared(42)")


@task()
def make_order(number: int) -> None:
    Order.objects.create(number=number)


@task()
def say_language() -> str:
    before = str(translation.get_language())
    translation.activate("de")
    return before


@task()
async def say_language_async() -> str:
    return str(translation.get_language())


@task()
def keep_connection() -> None:
    connection.ensure_connection()
    runs.append(connection.connection)


@task()
async def keep_connection_async() -> None:
    await sync_to_async(keep_connection.func)()


@task(unique_key=lambda number: f"order-{number}", tenant=lambda number: f"customer-{number}")
def unique_task(number: int) -> None:
    return None


@task(lane=lambda number: f"customer-{number}" if number else None)
def lane_task(number: int) -> None:
    return None


@task(unique_key=lambda number, version=0: f"order-{number}", when_live="replace")
def newest_task(number: int, version: int = 0) -> int:
    return version


@task
def add(numbers: list[int], offset: int = 0) -> int:
    return sum(numbers) + offset


@task(takes_context=True)
def add_squares(context: JobmillContext, numbers: list[int]) -> int:
    return sum(context.jobmill.sync.run_all(add.draft([number] * number) for number in numbers))


@task(takes_context=True)
def reset_password(context: JobmillContext, to: str, token: str, *more_tokens: str, note: str = "") -> None:
    return None


@task(timeout="50ms", max_attempts=1)
async def never_ends() -> None:
    import asyncio

    await asyncio.Event().wait()


@task(takes_context=True, timeout="50ms", max_attempts=1)
def notices_its_timeout(context: JobmillContext) -> None:
    while not context.jobmill.cancelled:
        time.sleep(0.005)
    runs.append("noticed")


@recurring("0 3 * * *", timezone="Europe/Berlin")
@task(queue_name="queue_1", priority=7)
def nightly() -> None:
    runs.append("nightly")


def not_a_task() -> None:
    """A function in a module of tasks: no job may run it."""
    runs.append("not a task")
