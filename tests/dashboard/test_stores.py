"""The overview and the page of a queue on every store, after real runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import jobmill
from jobmill import Dashboard
from tests.dashboard.visitor import Visitor


async def test_the_overview_and_a_queue(store_url: str) -> None:
    async with jobmill.connect(store_url) as jobs:
        await jobs.store.migrate()

        @jobs.handler(queue="mail", max_attempts=1)
        async def send(number: int) -> None:
            if number % 2:
                raise ConnectionError("refused")

        for number in range(4):
            await send.enqueue(number=number)
        await jobs.mark("v1.4.2")
        await jobs.tick()
        await jobs.queue("invoices").pause(who="ada", note="api down")
        due_at = datetime.now(UTC) - timedelta(minutes=5)
        await jobs.enqueue("report", queue="reports", every="1h", key="hourly", due_at=due_at)

        visitor = Visitor(Dashboard(jobs))
        page = await visitor.get("/")
        assert "Due now 1 100% in queue reports" in page.words
        assert "Failed, last hour 2 50% of 4 that finished" in page.words
        assert "Queue reports: no worker claims it" in page.words
        assert "2 × ConnectionError in send" in page.words
        assert "Recurring report is 5 min 0" in page.words
        data = await visitor.json("/?range=30d")
        last = data["chart"]["points"][-1]
        assert (last["succeeded"], last["errors"]) == (2, 2)
        assert "Paused by ada" in (await visitor.get("/queues/invoices")).words
        data = await visitor.json("/queues/mail")
        assert [(one["name"], one["errors_1h"]) for one in data["handlers"]] == [("send", 2)]
        assert [mark["text"] for mark in data["chart"]["marks"]] == ["v1.4.2"]
