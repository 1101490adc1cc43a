"""Claims on MongoDB that hand out what they found without reading it again: only where it cannot have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from jobmill.core.job import JobOptions
from jobmill.core.values import Claimed, Settlement
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.settle import settle as settle_all
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim_one,
    look,
    put,
    release,
    retry,
    settle,
    started,
    succeed,
    wish,
)
from tests.stores.mongo_scene import HOME, Scene, home, profiled

pytestmark = pytest.mark.stores("mongo")

SETTLE = "jobmill.stores.mongo.exchange.settle"
Meanwhile = Callable[[], Awaitable[Any]]


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


def between(monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile) -> None:
    """Let something happen after the next exchange has looked, and before it writes."""

    async def later(*given: Any) -> Any:
        monkeypatch.setattr(SETTLE, settle_all)
        await meanwhile()
        return await settle_all(*given)

    monkeypatch.setattr(SETTLE, later)


async def exchanged(scene: Scene, held: Claimed) -> dict[str, Claimed]:
    """A busy worker's exchange: what it claimed, while it settled another job."""
    answer = await scene.store.exchange([succeed(held)], wish(queues=HOME))
    assert answer.settled == ["done"]
    claimed = [one for one in answer.claimed if isinstance(one, Claimed)]
    assert len(claimed) == len(answer.claimed)
    return {one.job.id: one for one in claimed}


async def reads_again(scene: Scene, held: Claimed) -> bool:
    """Whether such an exchange asks for the jobs that have its token."""
    async with profiled(scene.store) as done:
        assert await exchanged(scene, held)
    return any("claimId" in one["command"].get("filter", {}) for one in done)


async def test_a_busy_worker_does_not_read_again_what_it_claimed(scene: Scene) -> None:
    held = await started(scene.store, home("held"))
    await scene.put("a", "b", "c")
    assert not await reads_again(scene, held)


@pytest.mark.parametrize("is_busy", [True, False])
async def test_what_is_handed_out_is_what_the_store_has(scene: Scene, is_busy: bool) -> None:
    held = await started(scene.store, home("held"))
    options = JobOptions(max_attempts=7)
    await put(
        scene.store,
        home("plain", payload={"n": 2**62, "text": "ä", "none": None}),
        home("urgent", priority=3),
        home("keyed", key="one", tenant="acme"),
        home("optional", options=options),
    )
    await scene.insert(data=[1, 2.5], uniqueKey="theirs", heartbeatInterval=1)
    settlements = [succeed(held)] if is_busy else []
    claimed = (await scene.store.exchange(settlements, wish(queues=HOME))).claimed
    assert len(claimed) == 5
    for one in claimed:
        assert isinstance(one, Claimed)
        assert one.job == await look(scene.store, one.lease.id)
        assert one.job.claims == 1
        assert one.lease.until_ms == scene.clock() + LEASE_MS
        assert await settle(scene.store, succeed(one)) == ["done"]


@pytest.mark.parametrize(("ended", "errors"), [(partial(retry, delay_ms=0), 1), (release, 0)])
async def test_a_job_that_another_worker_had_meanwhile_has_its_errors_and_claims(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ended: Callable[[Claimed], Settlement], errors: int
) -> None:
    held = await started(scene.store, home("held"))
    await scene.put("a", "b")

    async def meanwhile() -> None:
        async with scene.another() as store:
            other = await claim_one(store, queues=HOME)
            assert await settle(store, ended(other)) == ["done"]

    between(monkeypatch, meanwhile)
    claimed = await exchanged(scene, held)
    counted = {id: (one.job.errors, one.job.claims) for id, one in claimed.items()}
    assert counted == {"a": (errors, 2), "b": (0, 1)}


async def test_a_job_that_a_monque_failed_meanwhile_has_its_errors(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await started(scene.store, home("held"))
    await scene.put("a", "b")
    failed = {"failCount": 4, "failReason": "no luck", "updatedAt": date(scene.clock())}
    jobs = scene.store.context.here.jobs
    between(monkeypatch, lambda: jobs.update_one({"jobmill.id": "a"}, {"$set": failed}))
    claimed = await exchanged(scene, held)
    assert (claimed["a"].job.errors, claimed["a"].job.error) == (4, "no luck")
    assert claimed["b"].job.errors == 0


async def test_a_job_that_is_gone_meanwhile_is_not_handed_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    held = await started(scene.store, home("held"))
    await scene.put("a", "b", "c")
    between(monkeypatch, lambda: scene.store.context.here.jobs.delete_one({"jobmill.id": "b"}))
    assert set(await exchanged(scene, held)) == {"a", "c"}


async def test_while_others_are_quicker_payloads_are_read_once_claimed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = [await started(scene.store, home(id)) for id in ("held", "held too", "held as well")]
    await scene.put("a", "b")
    between(monkeypatch, lambda: scene.store.context.here.jobs.delete_one({"jobmill.id": "a"}))
    assert set(await exchanged(scene, first)) == {"b"}
    await scene.put("c", "d")
    assert await reads_again(scene, second)
    # Nobody was quicker then.
    await scene.put("e", "f")
    assert not await reads_again(scene, third)


async def test_a_recurring_job_is_read_again(scene: Scene) -> None:
    held = await started(scene.store, home("held"))
    await scene.put("a")
    await scene.insert(name="send", repeatInterval="* * * * *", uniqueKey="again")
    assert await reads_again(scene, held)
