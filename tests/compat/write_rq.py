"""Writes jobs with the real RQ: `python write_rq.py URL`. Prints the ids by what they are."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

from redis import Redis
from rq import Queue, Retry
from rq.job import Callback

LATER = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)


def main(url: str) -> None:
    connection = Redis.from_url(url)
    plain: Any = Queue("default", connection=connection, serializer="json")
    ids = {}
    ids["json"] = plain.enqueue("shop.send", "ada", subject="hi").id
    ids["retries"] = plain.enqueue("shop.send", "bob", retry=Retry(max=3, interval=[10, 30])).id
    ids["timeout"] = plain.enqueue("shop.send", "eve", job_timeout=7).id
    ids["scheduled"] = plain.enqueue_at(LATER, "shop.send", "dan").id
    ids["own id"] = plain.enqueue("shop.send", "fay", job_id="12345").id
    ids["deferred"] = plain.enqueue("shop.send", "gus", depends_on=ids["json"]).id
    ids["callback"] = plain.enqueue("shop.send", "hal", on_success=Callback("shop.send")).id
    ids["other queue"] = Queue("slow", connection=connection, serializer="json").enqueue("shop.send", "kim").id
    pickling: Any = Queue("default", connection=connection)
    ids["pickle"] = pickling.enqueue("shop.send", "lea", when=datetime(2026, 1, 2)).id
    ids["object"] = pickling.enqueue("shop.send", object()).id
    print(json.dumps(ids))


main(sys.argv[1])
