"""Our notes of how long jobs are kept, after Node has retried or removed the jobs, or the whole queue."""

from __future__ import annotations

import pytest

from jobmill.core.recurrence import Recurrence
from jobmill.testing.contract.support import new
from tests.interop.twins import Twins

pytestmark = pytest.mark.stores("redis")

MINUTE = {"age": 60}


async def run(both: Twins, id: str) -> None:
    assert await both.ours.claim() == [id]
    await both.ours.complete(id)


async def run_in_node(both: Twins, id: str) -> None:
    assert await both.ours.node.claim() == [id]
    await both.ours.node.complete(id)


async def is_there_after_a_purge(both: Twins, id: str = "a") -> bool:
    await both.ours.store.purge()
    return (await both.ours.store.get([f"mail:{id}"]))[0] is not None


async def notes(both: Twins) -> int:
    return int(await both.ours.redis.zcard(f"{both.ours.prefix}:mail:jobmill:expiry"))


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_that_node_ran_again_is_kept_from_its_new_end_on(both: Twins, is_plain: bool) -> None:
    await both.ours.add("a", remove_on_complete=MINUTE, remove_on_fail=MINUTE)
    if is_plain:
        await run(both, "a")
    else:
        assert await both.ours.claim() == ["a"]
        await both.ours.error("a", final=True)
    await both.later(50)
    await both.ours.node.requeue("a", "completed" if is_plain else "failed")
    await run_in_node(both, "a")
    await both.later(59)
    assert await is_there_after_a_purge(both)
    await both.later(1)
    assert not await is_there_after_a_purge(both)
    assert await notes(both) == 0


async def test_a_job_that_waits_when_its_time_is_over_keeps_its_own_retention(both: Twins) -> None:
    await both.ours.add("a", remove_on_complete=MINUTE)
    await run(both, "a")
    await both.later(50)
    await both.ours.node.requeue("a", "completed")
    await both.later(20)
    assert await is_there_after_a_purge(both)
    await run_in_node(both, "a")
    await both.later(59)
    assert await is_there_after_a_purge(both)
    await both.later(1)
    assert not await is_there_after_a_purge(both)


@pytest.mark.parametrize("keep", [False, MINUTE], ids=["for ever", "for a minute"])
async def test_a_job_that_node_removed_leaves_no_note(both: Twins, keep: object) -> None:
    for id in ("a", "b"):
        await both.ours.add(id, remove_on_complete=keep)
        await run(both, id)
    await both.ours.node.remove("a")
    assert await notes(both) == 2
    assert await is_there_after_a_purge(both, "b")
    assert await notes(both) == 1


async def test_a_queue_that_node_obliterated_leaves_no_keys_of_ours(both: Twins) -> None:
    for id, how in (("a", MINUTE), ("b", 1), ("c", False)):
        await both.ours.add(id, remove_on_complete=how)
        await run(both, id)
    rule = Recurrence(key="k", cron="0 0 LW * *", declared=True)
    await both.ours.store.enqueue([new(recurrence=rule, key="k")])
    await both.ours.store.purge()
    keys = f"{both.ours.prefix}:mail*"
    assert len([key for key in await both.ours.redis.keys(keys) if b":jobmill:" in key]) >= 4
    await both.ours.node.obliterate()
    await both.ours.store.purge()
    assert await both.ours.redis.keys(keys) == []
