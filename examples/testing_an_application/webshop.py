"""A small shop: the application whose tests are in this folder."""

from __future__ import annotations

import jobmill

jobs = jobmill.connect()

#: The mails that went out, and the stock. A real shop has a mail server and a database.
mailbox: list[str] = []
stock = {"lamp": 3}


class MailServerDown(Exception):
    """The mail server does not answer."""


@jobs.handler(max_attempts=3, backoff=jobmill.fixed("1m"), timeout="10s")
async def send_mail(to: str, subject: str) -> str:
    if to.endswith("@down.example"):
        raise MailServerDown(to)
    mailbox.append(f"{subject} to {to}")
    return subject


@jobs.handler
def ship(context: jobmill.Context, order: str, article: str) -> int:
    """A sync handler. It may run twice for one order, so it must not count twice."""
    if order not in shipped:
        shipped.add(order)
        stock[article] -= 1
    return stock[article]


shipped: set[str] = set()


@jobs.handler(cron="0 9 * * mon", timezone="Europe/Berlin")
async def weekly_report() -> None:
    await send_mail.enqueue(to="boss@example.com", subject="Weekly report")


async def place_order(customer: str, article: str) -> None:
    """What a web framework would call."""
    await ship.options(unique_key=f"order-{customer}").enqueue(order=f"order-{customer}", article=article)
    await send_mail.enqueue(to=customer, subject="Thank you")
    await send_mail.options(delay="14d").enqueue(to=customer, subject="Do you like it?")
