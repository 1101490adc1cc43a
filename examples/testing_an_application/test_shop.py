"""Run them with `pytest`, and on a database with `pytest --jobmill-stores=memory,sqlite`."""

from __future__ import annotations

import pytest
import webshop
from webshop import MailServerDown, place_order, send_mail, ship

from jobmill.testing import Drain, EnqueuedJobs, Inline, MakesCrash, MakesFlakyStore, RunJob, Travel


@pytest.fixture(autouse=True)
def _new_shop() -> None:
    webshop.mailbox.clear()
    webshop.shipped.clear()
    webshop.stock["lamp"] = 3


async def test_an_order_is_confirmed_at_once_and_asked_about_later(enqueued: EnqueuedJobs) -> None:
    await place_order("ada@example.com", "lamp")

    enqueued.one(ship, article="lamp")
    enqueued.one(send_mail, to="ada@example.com", subject="Thank you", delay=0)
    enqueued.one(send_mail, to="ada@example.com", delay="14d")
    enqueued.none(send_mail, to="boss@example.com")


async def test_an_order_takes_a_lamp_from_the_stock(drain: Drain) -> None:
    await place_order("ada@example.com", "lamp")

    runs = await drain()

    assert runs.names == ["ship", "send_mail"]
    assert webshop.stock == {"lamp": 2}


async def test_two_weeks_later_the_customer_is_asked(travel: Travel) -> None:
    await place_order("ada@example.com", "lamp")

    runs = await travel("14d")

    assert webshop.mailbox[0] == "Thank you to ada@example.com"
    assert webshop.mailbox[-1] == "Do you like it? to ada@example.com"
    assert runs.names.count("weekly_report") == 2


async def test_a_mail_is_tried_three_times(travel: Travel, enqueued: EnqueuedJobs) -> None:
    await send_mail.enqueue(to="ada@down.example", subject="Thank you")

    runs = await travel("1h", errors="keep")

    assert [run.attempt for run in runs] == [1, 2, 3]
    assert [run.at.minute for run in runs] == [0, 1, 2]
    assert enqueued.one(send_mail).state == "failed"


async def test_an_error_of_a_handler_is_an_error_of_the_test(drain: Drain) -> None:
    await send_mail.enqueue(to="ada@down.example", subject="Thank you")

    with pytest.raises(MailServerDown):
        await drain()


@pytest.mark.parametrize("after", ["claim", "effect", "settle"])
async def test_an_order_ships_once_although_a_worker_dies(
    after: str, crash: MakesCrash, drain: Drain, travel: Travel
) -> None:
    await place_order("ada@example.com", "lamp")

    with crash(after=after) as crashed:  # type: ignore[arg-type]
        await drain()
    await travel(crashed.lease)

    assert webshop.stock == {"lamp": 2}


async def test_no_order_is_forgotten_while_the_store_is_flaky(flaky_store: MakesFlakyStore, drain: Drain) -> None:
    for name in ("ada", "bob", "lin"):
        await place_order(f"{name}@example.com", "lamp")

    with flaky_store(0.2):
        await drain()

    assert webshop.stock == {"lamp": 0}


async def test_one_attempt(run_job: RunJob) -> None:
    run = await run_job(ship, order="1", article="lamp")

    assert run.result == 2


@pytest.mark.usefixtures("inline")
async def test_with_inline_everything_has_happened_when_the_call_returns() -> None:
    await place_order("ada@example.com", "lamp")

    assert webshop.mailbox == ["Thank you to ada@example.com"]


def test_a_sync_test(drain: Drain, enqueued: EnqueuedJobs, inline: Inline) -> None:
    webshop.jobs.sync(place_order("ada@example.com", "lamp"))

    enqueued.one(ship, state="succeeded")
    assert drain.sync() == []
