"""An application that makes some traffic, so that dashboards and alerts have something to show."""

from __future__ import annotations

import asyncio
import random

import jobmill

jobs = jobmill.connect()


class CardDeclined(Exception):
    """The bank said no."""


# Recurring jobs make the traffic, so that no further process is needed.
@jobs.handler(every="2s")
async def place_orders() -> int:
    count = random.randint(1, 10)
    await jobs.enqueue_many([charge_card.draft(amount=random.randint(1, 100)) for _ in range(count)])
    return count


@jobs.handler(max_attempts=3, backoff=jobmill.fixed("2s"), keep_succeeded="10m", keep_failed="10m")
async def charge_card(amount: int) -> int:
    await asyncio.sleep(random.expovariate(10))  # a bank that is sometimes slow
    if random.random() < 1 / 3:
        raise CardDeclined(f"{amount}")
    return amount


@jobs.handler(cron="*/5 * * * *", timezone="Europe/Berlin", queue="reports")
def daily_sales() -> str:
    return "report"
