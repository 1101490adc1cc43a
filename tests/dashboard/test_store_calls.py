"""Each page needs at most five calls of the store, navigation included."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest

from jobmill import Client, Dashboard
from jobmill.core.values import Claim
from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from tests.dashboard.visitor import Visitor

VERBS = [name for name, verb in vars(Store).items() if not name.startswith("_") and inspect.iscoroutinefunction(verb)]
VERBS.remove("open")  # it is called again and again, and does nothing then


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each verb of a store was called. It comes before the client, which keeps some of them."""
    counted: Counter[str] = Counter()

    def counting(name: str, verb: Any) -> Any:
        async def call(*args: Any, **given: Any) -> Any:
            counted[name] += 1
            return await verb(*args, **given)

        return call

    for name in VERBS:
        monkeypatch.setattr(MemoryStore, name, counting(name, getattr(MemoryStore, name)))
    return counted


@pytest.mark.parametrize(
    "path",
    [
        *("/workers", "/workers?worker=w", "/audit", "/audit?who=ada", "/recurring", "/ask/recur_edit?id={id}"),
        "/ask/recur_add?cron=0+8+*+*+*",
        *("/errors?range=1h", "/errors?range=8h", "/errors?range=24h", "/errors?range=7d"),
        *("/jobs/{full}", "/jobs/{full}?log=1", "/jobs/{id}"),
        *("/flows", "/flows/small", "/flows/large", "/ask/flow?act=flow_cancel&id=large"),
        *("/queues/mail", "/lanes/mail", "/lanes/mail?lane=acme", "/lanes/mail?back=/queues/mail", "/ask/lanes/mail"),
        *(
            "/ask/lane?queue=mail&lane=acme",
            "/ask/pause_lane?queue=mail&lane=acme",
            "/jobs/{lane}",
            "/jobs/{lane}?log=1",
        ),
        *("/jobs?q=lane:acme", "/jobs?state=held", "/jobs?q=name:send*+lane:acme", "/jobs?json=1&q=send+lane:acme"),
        *("/related/small", "/jobs/small", "/jobs?q=flow:small"),
    ],
)
async def test_at_most_five_calls(calls: Counter[str], jobs: Client, path: str) -> None:
    id = (await jobs.enqueue("report", every="1h", key="k")).id
    await jobs.queue("full").running_limit(1)
    await jobs.enqueue("send", queue="full")
    await jobs.store.exchange(
        [], Claim(queues=("full",), names={"send": 1}, n=1, lease_ms=60_000, worker="w", token="t")
    )
    full = (await jobs.enqueue("send", queue="full")).id
    await jobs.queue("mail").lanes(running=1)
    lane = [(await jobs.enqueue("send", queue="mail", lane=lane)).id for lane in ("acme", "acme", "bigco", "bigco")][1]
    await jobs.pin(id, every="2h")
    await jobs.mark("v1")
    handler = jobs.handler(name="part")(_part)
    for flow, count in (("small", 5), ("large", 300)):
        parts = [handler.draft() for _ in range(count)]
        await handler.options(id=flow).draft().after(*parts).enqueue()
    calls.clear()
    page = await Visitor(Dashboard(jobs)).get(path.format(id=id, full=full, lane=lane))
    assert page.status == 200
    assert calls
    assert calls.total() <= 5, calls


async def _part() -> None: ...


async def test_the_system_page_makes_no_call_while_checks_run(calls: Counter[str], jobs: Client) -> None:
    """The checks are one run for all tabs, at most every 30 s. They need more calls than a page may make."""
    visitor = Visitor(Dashboard(jobs))
    await visitor.json("/system")
    calls.clear()
    assert (await visitor.get("/system")).status == 200
    assert calls.total() <= 5, calls
    assert calls["diagnose"] == 0
