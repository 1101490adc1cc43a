"""Writes jobs with the real arq: `python write_arq.py URL`. Prints the ids by what they are."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

LATER = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


async def main(url: str) -> None:
    settings = RedisSettings.from_dsn(url)
    plain = await create_pool(settings, job_serializer=to_json, job_deserializer=json.loads)
    ids = {}
    ids["json"] = (await plain.enqueue_job("send", "ada", subject="hi")).job_id
    ids["deferred"] = (await plain.enqueue_job("send", "bob", _defer_until=LATER)).job_id
    ids["own id"] = (await plain.enqueue_job("send", "eve", _job_id="mail:7")).job_id
    ids["other queue"] = (await plain.enqueue_job("send", "dan", _queue_name="arq:queue:slow")).job_id
    ids["running"] = (await plain.enqueue_job("send", "fay")).job_id
    await plain.psetex("arq:in-progress:" + ids["running"], 60_000, b"1")
    pickling = await create_pool(settings)
    ids["pickle"] = (await pickling.enqueue_job("send", "kim", when=datetime(2026, 1, 2))).job_id
    ids["object"] = (await pickling.enqueue_job("send", object())).job_id
    print(json.dumps(ids))
    for pool in (plain, pickling):
        await pool.aclose()


asyncio.run(main(sys.argv[1]))
