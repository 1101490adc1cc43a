"""Golden: what `getFlow` and bull-board show of our flows, beside the same flows of FlowProducer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.interop.board import Board, board_at
from tests.interop.node_side import NodeSide
from tests.interop.our_side import waiting_job
from tests.interop.test_golden_own_flows import child, tree
from tests.interop.twins import Twins
from tests.kit.node import Packages

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

QUEUES = ("parents", "children")
GENERATIONS = tree(child("a", "run", child("c"), child("d")), child("b", "run", attempts=1))


class Shown:
    """What both sides show of the same jobs."""

    def __init__(self, both: Twins, node: Board, ours: Board) -> None:
        self.ours = ours
        self._sides: tuple[tuple[NodeSide, Board], ...] = ((both.node, node), (both.ours.node, ours))

    async def _compared(self, shown: list[Any]) -> Any:
        golden, ours = map(_plain, shown)
        assert ours == golden
        return ours

    async def ask(self, path: str) -> Any:
        """The same answer of both boards."""
        return await self._compared([await board.ask(path) for _, board in self._sides])

    async def flow(self) -> Any:
        """The same flow by `getFlow`."""
        return await self._compared([await side.ask("getFlow", "parents", job="p") for side, _ in self._sides])


def _plain(value: Any) -> Any:
    """Children in order of their ids; without the id in the options, which ours do not repeat."""
    match value:
        case dict():
            opts = (
                {"opts": {name: one for name, one in value["opts"].items() if name != "jobId"}}
                if "opts" in value
                else {}
            )
            return {name: _plain(one) for name, one in (value | opts).items()}
        case [{"id": _}, *_]:
            return sorted(map(_plain, value), key=lambda one: str(one["id"]))
        case list():
            return [_plain(one) for one in value]
    return value


@pytest.fixture
async def shown(both: Twins, node_packages: Packages) -> AsyncIterator[Shown]:
    async with contextlib.AsyncExitStack() as stack:
        boards = []
        for side in (both.node, both.ours.node):
            board = board_at(node_packages, side.url, side.prefix, *QUEUES)
            boards.append(await stack.enter_async_context(board))
        yield Shown(both, *boards)


def states(flow: Any) -> Any:
    return [flow["id"], flow["state"], [states(child) for child in flow["children"]]]


async def test_a_flow_on_its_way(both: Twins, shown: Shown) -> None:
    async def see() -> Any:
        await shown.flow()
        await shown.ask("/queues/parents/p")
        flow = await shown.ask("/queues/parents/p/flow")
        assert (flow["nodeId"], flow["isFlowNode"]) == ("p", True)
        for id in "abcd":
            await shown.ask(f"/queues/children/{id}")
            assert await shown.ask(f"/queues/children/{id}/flow") == flow | {"nodeId": id}
        return flow["flowRoot"]

    both.events_by_job = True
    await both.tree(GENERATIONS)
    leaves = [["c", "waiting", []], ["d", "waiting", []]]
    held = "waiting-children"
    assert states(await see()) == ["p", held, [["a", held, leaves], ["b", "waiting", []]]]

    await both.claim(3, queue="children")
    await both.error("b", queue="children")
    await both.complete("c", {"n": 1}, queue="children")
    flow = await see()
    leaves = [["c", "completed", []], ["d", "active", []]]
    assert states(flow) == ["p", held, [["a", held, leaves], ["b", "failed", []]]]
    assert list(flow["ignoredChildFailureReasons"].values()) == ["no luck"]

    await both.complete("d", queue="children")
    await both.claim(queue="children")
    await both.complete("a", queue="children")
    flow = await see()
    assert flow["state"] == "waiting"
    assert flow["dependencies"] == {"processed": 1, "unprocessed": 0, "ignored": 1, "failed": 0}


async def test_a_job_that_two_wait_for(both: Twins, shown: Shown) -> None:
    """BullMQ has no such flows: bull-board draws the job below each of them, and finds no flow from the job itself."""
    ids = {"a": (), "left": ("a",), "right": ("a",), "p": ("left", "right")}
    jobs = [waiting_job({**tree(*map(child, after)), "id": id}) for id, after in ids.items()]
    await both.ours.store.enqueue(jobs)
    for id in ("p", "left", "right"):
        answer = _plain(await shown.ours.ask(f"/queues/parents/{id}/flow"))
        below = ["a", "waiting", []]
        branches = [[branch, "waiting-children", [below]] for branch in ("left", "right")]
        assert states(answer["flowRoot"]) == ["p", "waiting-children", branches]
    assert not (await shown.ours.ask("/queues/parents/a/flow"))["isFlowNode"]
