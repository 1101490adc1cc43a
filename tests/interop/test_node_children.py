"""Parents of flows that Node added: when they run, what they keep of their children, and why they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context
from tests.helpers import until
from tests.interop.scene import node_place
from tests.kit.node import NodeProcess

pytestmark = pytest.mark.stores("redis")


class Family:
    """Node, and a client whose handlers do what `acts` says for each job, by the id in its queue."""

    def __init__(self, jobs: Client, node: NodeProcess, url: str) -> None:
        self.jobs = jobs
        self.node = node
        self.url, self.prefix = node_place(url)
        self.acts: dict[str, Callable[[], Awaitable[Any]]] = {}
        self.ran: list[str] = []
        for queue in ("parents", "children"):
            jobs.handler(name=queue, queue=queue)(self._handle)

    async def _handle(self, context: Context) -> Any:
        id = context.job.id.partition(":")[2]
        self.ran.append(id)
        return await self.acts[id]() if id in self.acts else id

    async def ask(self, op: str, queue: str, **about: Any) -> Any:
        """An operation of Node's."""
        return await self.node.ask(op, url=self.url, prefix=self.prefix, queue=queue, **about)

    async def flow(self, *children: dict[str, Any], **opts: Any) -> None:
        """The parent `p` and children, each with its options."""
        made = [{"name": "children", "queueName": "children", "opts": child} for child in children]
        tree = {"name": "parents", "queueName": "parents", "opts": {"jobId": "p", **opts}, "children": made}
        await self.ask("flow", "parents", tree=tree)

    async def tick(self, *queues: str) -> list[str]:
        """What ran in these queues."""
        self.ran.clear()
        await self.jobs.tick(queues=queues)
        return self.ran

    async def state(self, id: str = "parents:p") -> str:
        """The list or set that has a job."""
        queue, _, local = id.partition(":")
        return str(await self.ask("state", queue, job=local))


@pytest.fixture
async def family(redis_url: str, node_ops: NodeProcess) -> AsyncIterator[Family]:
    async with jobmill.connect(redis_url) as jobs:
        yield Family(jobs, node_ops, redis_url)


async def fails() -> None:
    raise RuntimeError("no luck")


@pytest.mark.parametrize("order", [("children:a", "parents:p"), ("parents:p", "children:a")], ids=" ".join)
async def test_a_requeued_parent_waits_for_its_requeued_child(family: Family, order: tuple[str, str]) -> None:
    family.acts = {"a": fails, "p": fails}
    await family.flow({"jobId": "a", "ignoreDependencyOnFailure": True}, {"jobId": "b"})
    await family.tick("children")
    assert await family.tick("parents") == ["p"]
    assert [await family.state(id) for id in order] == ["failed", "failed"]
    family.acts.clear()
    for id in order:
        assert (await family.jobs.requeue(id)).ids == [id]
    assert await family.state() == "waiting-children"
    assert await family.tick("parents") == []
    assert await family.tick("children") == ["a"]
    assert await family.tick("parents") == ["p"]
    assert await family.state() == "completed"


async def test_a_requeued_parent_without_such_a_child_waits(family: Family) -> None:
    family.acts = {"p": fails}
    await family.flow({"jobId": "a"})
    await family.tick("children")
    await family.tick("parents")
    await family.jobs.requeue("parents:p")
    assert await family.state() == "waiting"


async def test_a_job_that_gets_a_child_while_it_runs_says_so(family: Family) -> None:
    key = f"{family.prefix}:children"

    async def gets_a_child() -> None:
        store, begin_ms = family.jobs.store, family.jobs.store.now()
        await until(lambda: store.now() > begin_ms + 5)  # the clocks of Node and of the server may differ by a little
        parent = {"id": "p", "queue": f"{family.prefix}:parents"}
        await family.ask("add", "children", name="children", data={}, opts={"jobId": "late", "parent": parent})

    family.acts = {"p": gets_a_child}
    await family.flow({"jobId": "a"})
    await family.tick("children")
    await family.tick("parents")
    job = await family.jobs.get("parents:p")
    assert job.state == "failed"
    assert f"the job cannot succeed before its child {key}:late, which it got while it ran" in (job.error or "")


async def test_a_parent_of_a_failed_child_says_so(family: Family) -> None:
    family.acts = {"a": fails, "p": fails}
    await family.flow({"jobId": "a", "failParentOnFailure": True})
    await family.tick("children")
    await family.tick("parents")
    family.acts.clear()
    await family.jobs.requeue("parents:p")
    assert await family.tick("parents") == ["p"]
    job = await family.jobs.get("parents:p")
    assert f"because its child {family.prefix}:children:a failed" in (job.error or "")


async def test_a_parent_that_ran_before_its_child_is_tried_again(family: Family) -> None:
    family.acts = {"a": fails}
    bad = {"jobId": "a", "continueParentOnFailure": True, "priority": 1}
    await family.flow(bad, {"jobId": "b", "priority": 2}, attempts=2)
    await family.jobs.tick(1, queues=["children"])
    assert await family.tick("parents") == ["p"]
    job = await family.jobs.get("parents:p")
    assert (job.state, job.errors) == ("waiting", 1)
    assert job.error == f"the job cannot succeed before its child {family.prefix}:children:b"
    assert await family.tick("children") == ["b"]
    assert await family.tick("parents") == ["p"]
    assert await family.state() == "completed"
