"""What reading costs in the memory store: pages, counts and purges come from indexes, however many jobs there are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from jobmill.core.changes import Cancel, Requeue
from jobmill.core.job import STATES, Keep, State
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Policy, Succeeded, settle
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, SEARCHED_PER_PAGE, Filter, after
from jobmill.stores.memory import MemoryStore
from jobmill.stores.memory.sorted_list import CHUNK, SortedList
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import QUEUE, claim, find_all, new, put, put_one

pytestmark = pytest.mark.stores("memory")

FEW, MANY = 500, 8_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def fill(
    store: MemoryStore, number: int, state: State = "waiting", *, rules: Policy = DEFAULT_POLICY, **about: Any
) -> list[str]:
    """Many jobs of one state, each in its own millisecond."""
    ids = await put(store, *[new(**about) for _ in range(number)])
    if state == "cancelled":
        assert (await store.change(ids, Cancel(), number)).ids == ids
    elif state != "waiting":
        claimed = await claim(store, number, lease_ms=3_600_000)
        outcome = Succeeded(b"null") if state == "succeeded" else Errored(error="x", error_type="E", final=True)
        if state != "running":
            await store.exchange([settle(one, outcome, rules, store.now()) for one in claimed], None)
    return ids


async def cost(call: Callable[[], Awaitable[object]]) -> int:
    """Instructions of Python's virtual machine, which do not depend on how busy this computer is."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # it would finalize what other tests have left, and that would count
    sys.settrace(trace)
    try:
        await call()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


async def assert_costs_the_same(
    call: Callable[[], Awaitable[object]], fill_up: Callable[[], Awaitable[object]], factor: float = 1.3
) -> None:
    shallow = await cost(call)
    await fill_up()
    assert await cost(call) <= shallow * factor + 200


# ---------------------------------------------------------------------------------------------------- pages and counts


@pytest.mark.parametrize("state", ["waiting", "succeeded", "failed", "cancelled"])
async def test_reading_costs_the_same_however_many_jobs_a_state_has(store: MemoryStore, state: State) -> None:
    async def look() -> None:
        await store.depths()
        for wanted in (Filter(queue=QUEUE, states=(state,)), Filter(states=(state,)), Filter(queue=QUEUE), EVERYTHING):
            await store.find(wanted, None, 50)
            await store.count_up_to(wanted, 100)
            await store.count(wanted)
        await store.purge()

    await fill(store, FEW, state)
    await assert_costs_the_same(look, lambda: fill(store, MANY, state))


@pytest.mark.parametrize("wanted", [EVERYTHING, *[Filter(queue=QUEUE, states=(one,)) for one in STATES]])
async def test_a_page_far_away_costs_what_the_second_one_does(store: MemoryStore, wanted: Filter) -> None:
    await fill(store, 3_000, "waiting" if wanted.states is None else wanted.states[0])
    near, far = [await store.find(wanted, None, limit) for limit in (50, 2_500)]
    await store.find(wanted, near.next, 50)  # the first cursor costs more: a pattern is compiled
    second = await cost(lambda: store.find(wanted, near.next, 50))
    assert await cost(lambda: store.find(wanted, far.next, 50)) <= second * 1.3 + 200
    assert len((await store.find(wanted, far.next, 1_000)).jobs) == 500


@pytest.mark.parametrize("few", STATES)
async def test_few_jobs_of_a_state_are_found_among_many_others(store: MemoryStore, few: State) -> None:
    await fill(store, 3, few)
    await assert_costs_the_same(
        lambda: store.find(Filter(states=(few,)), None, 50),
        lambda: fill(store, MANY, "cancelled" if few != "cancelled" else "succeeded"),
    )


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(recurring=True),
        Filter(unique_key="k"),
        Filter(queue=QUEUE, unique_key="k"),
        Filter(name="rare"),
        Filter(name_prefix="ra"),
        Filter(name="rare", states=("waiting", "running")),
    ],
    ids=repr,
)
async def test_rare_jobs_are_found_among_many_others(store: MemoryStore, wanted: Filter) -> None:
    rule = Recurrence(key="k", every_ms=60_000)
    rare = await put_one(store, new("rare", name="rare", key="k", recurrence=rule))
    await assert_costs_the_same(lambda: store.find(wanted), lambda: fill(store, MANY))
    assert [job.id for job in (await store.find(wanted)).jobs] == [rare]


async def test_jobs_that_are_due_later_are_found_behind_due_ones(store: MemoryStore) -> None:
    later = Filter(queue=QUEUE, states=("waiting",), due_after_ms=store.now() + 1)
    ids = await fill(store, 3, due=after(60_000))
    await assert_costs_the_same(lambda: store.find(later), lambda: fill(store, MANY))
    assert await find_all(store, later) == ids
    assert (await store.count_up_to(later, 100)).count == 3


async def test_a_search_that_no_index_answers_stops(store: MemoryStore) -> None:
    await put_one(store, new("oldest", tenant="acme"))
    wanted = Filter(tenant="acme")
    await fill(store, SEARCHED_PER_PAGE)
    await assert_costs_the_same(lambda: store.find(wanted), lambda: fill(store, 5_000))
    page = await store.find(wanted)
    assert (page.jobs, page.next is not None) == ([], True)
    assert not (await store.count_up_to(wanted, 10)).exact
    assert await find_all(store, wanted) == ["oldest"]


# ---------------------------------------------------------------------------------------------------- change and purge


async def test_a_change_by_filter_does_not_read_jobs_of_other_states(store: MemoryStore) -> None:
    await fill(store, 20, "failed")
    wanted = Filter(queue=QUEUE, states=("failed",))

    async def change() -> None:
        changed = await store.change(wanted, Requeue(due=after(60_000)), 5)
        assert (len(changed.ids), changed.more) == (5, True)

    await assert_costs_the_same(change, lambda: fill(store, MANY, "succeeded"))


async def test_a_purge_reads_what_it_removes(store: MemoryStore, clock: ManualClock) -> None:
    for keep in (Keep(age_ms=1_000), Keep(last=5)):
        await fill(store, 20, "succeeded", rules=Policy(keep_succeeded=keep))
    kept = await fill(store, FEW, "succeeded", rules=Policy(keep_succeeded=Keep()))
    clock.advance(2)

    async def purge() -> None:
        assert (await store.purge(10)).removed == 10

    await assert_costs_the_same(purge, lambda: fill(store, MANY, "failed", rules=Policy(keep_failed=Keep())))
    assert (await store.purge()).removed == 20
    assert set(kept) <= {job.id for job in (await store.find(EVERYTHING, None, 10_000)).jobs}


# ---------------------------------------------------------------------------------------------------- the index


def test_a_sorted_list_is_a_list_in_order() -> None:
    numbers = [(number * 7_919 % 10_007,) for number in range(10_007)]
    values = SortedList[tuple[int]]()
    for one in numbers:
        values.add(one)
    expected = sorted(numbers)
    for one in numbers[::3]:
        values.remove(one)
        expected.remove(one)
    assert list(values.between()) == expected
    assert values.first(2 * CHUNK) == expected[: 2 * CHUNK]
    for low, high in ((0, 10_007), (1, 2), (500, 500), (3_000, 9_000), (9_000, 3_000), (10_006, 20_000)):
        inside = [one for one in expected if low <= one[0] < high]
        assert list(values.between((low,), (high,))) == inside
        assert list(values.between((low,), (high,), descending=True)) == inside[::-1]
        assert values.count((low,), (high,)) == len(inside)
    for one in expected:
        values.remove(one)
    assert (values.count(), values.first(3), list(values.between())) == (0, [], [])
