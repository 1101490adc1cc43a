"""Writes messages with the real Celery: `python write_celery.py URL`. Prints the ids by what they are."""

from __future__ import annotations

import json
import os
import sys
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from celery import Celery, chain

LATER = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)


def main(url: str) -> None:
    app: Any = Celery("shop", broker=url, backend=None, set_as_current=False)
    app.conf.update(task_ignore_result=True, accept_content=["json", "pickle"], broker_connection_retry=False)
    app.conf.broker_transport_options = {"visibility_timeout": 3600}

    def take_two(x: Any, y: Any = 0) -> None: ...

    def take_any(to: str, **more: Any) -> None: ...

    add, mail = app.task(name="shop.add")(take_two), app.task(name="shop.mail")(take_any)
    ids = {}
    ids["plain"] = add.delay(1, 2).id
    ids["named"] = mail.delay(to="ada", subject="Grüße").id
    ids["eta"] = add.apply_async((3,), eta=LATER).id
    ids["countdown"] = add.apply_async((4,), countdown=3_650 * 86_400).id  # longer than a recording is kept
    ids["gzip"] = add.apply_async((5, "x" * 1000), compression="gzip").id
    ids["bzip2"] = add.apply_async((6, "x" * 1000), compression="bzip2").id
    ids["priority"] = add.apply_async((7,), priority=9).id
    ids["queue"] = mail.apply_async(("bob",), queue="letters").id
    ids["expires"] = add.apply_async((8,), expires=LATER).id
    ids["expired"] = add.apply_async((9,), expires=datetime.now(UTC) - timedelta(hours=1)).id
    ids["time_limit"] = add.apply_async((10,), time_limit=30).id
    values = [
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        Decimal("1.50"),
        uuid.UUID(int=5),
        b"\xff\x00",
        b"hi",
    ]
    ids["values"] = add.delay(values).id
    ids["pickle"] = add.apply_async((11, {"when": datetime(2026, 1, 2)}), serializer="pickle").id
    ids["chain"] = chain(add.s(12), add.s(13)).apply_async().parent.id
    ids["unacked"] = add.apply_async((14,), queue="taken").id
    with app.connection_for_read() as connection, connection.SimpleQueue("taken") as taken:
        message = taken.get(timeout=5)
        # As after `kill -9`: the message is with nobody, and unacknowledged.
        print(json.dumps({**ids, "unacked_tag": message.delivery_tag}), flush=True)
        os._exit(0)


main(sys.argv[1])
