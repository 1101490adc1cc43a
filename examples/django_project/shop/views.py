"""An API without a login, because this is an example."""

import json
from typing import Any

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from shop.models import Order
from shop.tasks import export_orders, send_receipt

MAX_AMOUNT = 1_000


@csrf_exempt
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    """Make an order and enqueue its receipt, both or neither."""
    given = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=given["customer"], amount=given["amount"])
            receipt = send_receipt.enqueue(order.pk)
            check_amount(order)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"number": order.pk, "receipt": receipt.id}, status=201)


def check_amount(order: Order) -> None:
    """Refuse large orders, after everything was written: the transaction is rolled back."""
    if order.amount > MAX_AMOUNT:
        raise ValueError(f"no order may be over {MAX_AMOUNT}")


@require_GET
def order(request: HttpRequest, number: int) -> JsonResponse:
    """One order."""
    found = Order.objects.filter(pk=number).values("customer", "amount", "receipt_sent", "closed").first()
    return JsonResponse(found or {"error": "there is no such order"}, status=200 if found else 404)


@csrf_exempt
@require_POST
def exports(request: HttpRequest) -> JsonResponse:
    """Begin an export."""
    result = export_orders.enqueue(seconds=json.loads(request.body)["seconds"])
    return JsonResponse({"id": result.id}, status=202)


@require_GET
def export(request: HttpRequest, id: str) -> JsonResponse:
    """How an export is doing."""
    result = export_orders.get_result(id)
    answer: dict[str, Any] = {"status": result.status, "attempts": result.attempts, "workers": result.worker_ids}
    if result.status == "SUCCESSFUL":
        answer["result"] = result.return_value
    return JsonResponse(answer)
