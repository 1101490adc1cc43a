"""Crontabs over each store: several on the same documents, and what they leave there."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime

import pytest

from jobmill.core.durations import to_datetime
from jobmill.crontab import Crontab, CrontabJob, CrontabStore
from tests.crontab.harness import CrontabHarness, Kept
from tests.helpers import until

ONCE, GONE, AGAIN = 60, 20, 20
HOUR_MS = 3_600_000


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_several_crontabs_run_each_document_once(harness: CrontabHarness, concurrency: int) -> None:
    now = harness.clock()
    due, slot = to_datetime(now - 5_000), to_datetime((now // HOUR_MS + 1) * HOUR_MS)
    documents: dict[str, Kept] = {}
    documents |= {f"once {n}": Kept(sleep_until=due) for n in range(ONCE)}
    documents |= {f"gone {n}": Kept(sleep_until=due, auto_remove=True) for n in range(GONE)}
    documents |= {f"again {n}": Kept(sleep_until=due, interval="@hourly", auto_remove=True) for n in range(AGAIN)}
    documents["later"] = Kept(sleep_until=to_datetime(now + 1))
    for id, document in documents.items():
        await harness.add(id, document)
    ran: Counter[object] = Counter()
    errors: list[BaseException] = []

    async def on_document(job: CrontabJob) -> None:
        ran[job.id] += 1
        await asyncio.sleep(0)

    def crontab(store: CrontabStore) -> Crontab:
        return Crontab(
            store,
            on_document=on_document,
            on_error=lambda error, _: errors.append(error),
            concurrency=concurrency,
            clock=harness.clock,
        )

    async with crontab(harness.store) as one, crontab(await harness.another()) as other:
        await until(lambda: one.is_idle and other.is_idle and ran.total() >= ONCE + GONE + AGAIN)
    assert errors == []
    assert ran == dict.fromkeys([id for id in documents if id != "later"], 1)

    def left(id: str) -> Kept | None:
        if id.startswith("gone"):
            return None
        if id == "later":
            return documents[id]
        sleep_until: datetime | None = slot if id.startswith("again") else None
        return Kept(sleep_until=sleep_until, interval=documents[id].interval, auto_remove=documents[id].auto_remove)

    assert {id: await harness.kept(id) for id in documents} == {id: left(id) for id in documents}
