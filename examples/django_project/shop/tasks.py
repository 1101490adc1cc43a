"""Tasks of the shop."""

import time
from typing import Any

from jobmill.django import JobmillContext, recurring, task
from shop.models import Order


@task(unique_key=lambda number: f"receipt-{number}")
def send_receipt(number: int) -> str:
    """Send the receipt of an order; a second call while it waits enqueues nothing."""
    order = Order.objects.get(pk=number)
    order.receipt_sent = True  # here a real shop sends an email
    order.save(update_fields=["receipt_sent"])
    return f"receipt for {order.customer}"


@task(queue_name="reports", takes_context=True, timeout="1h")
def export_orders(context: JobmillContext, seconds: float) -> dict[str, Any]:
    """Export all orders, which takes some time. After a crash, another worker runs it again."""
    steps = 20
    for step in range(steps):
        time.sleep(seconds / steps)
        context.jobmill.progress(100 * step / steps)
    return {"orders": Order.objects.count(), "attempt": context.attempt}


@recurring("0 3 * * *", timezone="Europe/Berlin")
@task(queue_name="reports")
def close_orders() -> int:
    """Close all orders whose receipt was sent, every night at three."""
    return int(Order.objects.filter(receipt_sent=True, closed=False).update(closed=True))
