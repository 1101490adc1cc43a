"""`get`, `find`, `count` and `stats`: reading jobs."""

from __future__ import annotations

import pytest

from jobmill.core.job import FINAL, LIVE, STATES, State
from jobmill.core.values import EVERYTHING, Count, Filter, Page, Stats, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    all_pages,
    claim,
    find_all,
    in_state,
    look,
    new,
    put,
    put_one,
    second,
    settle,
    started,
    succeed,
    turns,
)


class GetContract:
    """Reading jobs by id."""

    async def test_jobs_are_returned_in_the_order_of_the_ids(self, harness: Harness) -> None:
        a, b, c = await put(harness.store, new(), new(), new())
        assert [job and job.id for job in await harness.store.get([c, a, b])] == [c, a, b]

    async def test_an_unknown_id_is_none(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        jobs = await harness.store.get(["never-was", id, ""])
        assert [job and job.id for job in jobs] == [None, id, None]

    async def test_get_without_ids_returns_nothing(self, harness: Harness) -> None:
        assert await harness.store.get([]) == []

    async def test_an_id_given_twice_is_returned_twice(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        assert [job and job.id for job in await harness.store.get([id, id])] == [id, id]

    async def test_get_with_two_thousand_ids(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(100)])
        asked = [f"never-{number}" for number in range(1_900)] + ids
        assert [job.id for job in await harness.store.get(asked) if job] == ids

    @pytest.mark.parametrize("state", STATES)
    async def test_get_and_find_return_the_same_job(self, harness: Harness, state: State) -> None:
        id = await in_state(harness.store, state, new(payload=[1], key="k", tenant="acme"))
        page = await harness.store.find(EVERYTHING)
        assert page.jobs == [await look(harness.store, id)]

    @pytest.mark.parametrize("state", STATES)
    async def test_a_job_can_be_converted_to_json(self, harness: Harness, state: State) -> None:
        id = await in_state(harness.store, state)
        shown = (await look(harness.store, id)).to_dict()
        assert (shown["id"], shown["state"], shown["payload"]) == (id, state, None)


class FindContract:
    """Pages of matching jobs, in the order of the store."""

    async def test_an_empty_store_has_one_empty_page(self, harness: Harness) -> None:
        assert await harness.store.find(EVERYTHING) == Page([])

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 11])
    async def test_pages_have_every_match_exactly_once(self, harness: Harness, limit: int) -> None:
        ids = await put(harness.store, *[new() for _ in range(10)])
        assert sorted(await find_all(harness.store, EVERYTHING, limit)) == sorted(ids)

    async def test_pages_of_a_filter_have_every_match_exactly_once(self, harness: Harness) -> None:
        jobs = [new(tenant="acme" if number % 3 else "other") for number in range(20)]
        ids = await put(harness.store, *jobs)
        expected = [id for id, job in zip(ids, jobs, strict=True) if job.tenant == "acme"]
        assert sorted(await find_all(harness.store, Filter(tenant="acme"), 4)) == sorted(expected)

    async def test_pages_over_all_states_have_every_match_exactly_once(self, harness: Harness) -> None:
        ids = [await in_state(harness.store, state) for state in (*FINAL, "running", *FINAL, *FINAL, "waiting")]
        assert sorted(await find_all(harness.store, EVERYTHING, 2)) == sorted(ids)

    async def test_a_page_has_at_most_limit_jobs(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        page = await harness.store.find(EVERYTHING, None, 3)
        assert len(page.jobs) <= 3
        assert page.next is not None

    async def test_the_first_page_has_no_previous_page(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        assert (await harness.store.find(EVERYTHING, None, 3)).previous is None

    async def test_previous_cursors_lead_back_through_the_same_pages(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(10)])
        pages = [page for page in await all_pages(harness.store, EVERYTHING, 3) if page.jobs]
        back: list[str] = [job.id for job in pages[-1].jobs]
        previous = pages[-1].previous
        for _ in turns():
            if previous is None:
                break
            page = await harness.store.find(EVERYTHING, previous, 3)
            back = [job.id for job in page.jobs] + back
            previous = page.previous
        assert back == [job.id for page in pages for job in page.jobs]
        assert sorted(back) == sorted(ids)

    async def test_a_page_reached_backwards_has_a_next_cursor(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(9)])
        pages = [page for page in await all_pages(harness.store, EVERYTHING, 3) if page.jobs]
        assert pages[2].previous is not None
        middle = await harness.store.find(EVERYTHING, pages[2].previous, 3)
        assert middle.jobs == pages[1].jobs
        assert middle.next is not None
        assert (await harness.store.find(EVERYTHING, middle.next, 3)).jobs == pages[2].jobs

    async def test_another_connection_follows_a_cursor(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(4)])
        first = await harness.store.find(EVERYTHING, None, 2)
        async with second(harness) as other:
            rest = await other.find(EVERYTHING, first.next, 2)
        assert sorted(job.id for job in first.jobs + rest.jobs) == sorted(ids)

    # ------------------------------------------------------------------------------------------------ filters

    async def test_a_filter_by_queue(self, harness: Harness) -> None:
        a, _ = await put(harness.store, new(queue="a"), new(queue="b"))
        assert await find_all(harness.store, Filter(queue="a")) == [a]

    async def test_a_filter_by_name(self, harness: Harness) -> None:
        a, _ = await put(harness.store, new(name="a"), new(name="b"))
        assert await find_all(harness.store, Filter(name="a")) == [a]

    async def test_a_filter_by_tenant(self, harness: Harness) -> None:
        a, *_ = await put(harness.store, new(tenant="a"), new(tenant="b"), new())
        assert await find_all(harness.store, Filter(tenant="a")) == [a]

    async def test_a_filter_by_unique_key_finds_live_and_final_jobs(self, harness: Harness) -> None:
        old = await in_state(harness.store, "failed", new(key="k"))
        live, _ = await put(harness.store, new(key="k"), new(key="other"))
        assert sorted(await find_all(harness.store, Filter(unique_key="k"))) == sorted([old, live])

    @pytest.mark.parametrize("states", [*[(state,) for state in STATES], LIVE, FINAL, ("waiting", "failed")])
    async def test_a_filter_by_states(self, harness: Harness, states: tuple[State, ...]) -> None:
        order: tuple[State, ...] = (*FINAL, "running", "waiting")
        ids = {state: await in_state(harness.store, state) for state in order}
        found = await find_all(harness.store, Filter(states=states))
        assert sorted(found) == sorted(ids[state] for state in states)

    async def test_a_filter_by_no_states_finds_nothing(self, harness: Harness) -> None:
        await put_one(harness.store)
        assert await find_all(harness.store, Filter(states=())) == []

    async def test_a_filter_by_creation_includes_its_start_and_excludes_its_end(self, harness: Harness) -> None:
        start = harness.store.now()
        ids = []
        for _ in range(3):
            ids.append(await put_one(harness.store))
            await harness.advance(1)
        found = await find_all(harness.store, Filter(created_after_ms=start + 1_000, created_before_ms=start + 2_000))
        assert found == [ids[1]]
        assert sorted(await find_all(harness.store, Filter(created_after_ms=start + 1))) == sorted(ids[1:])
        assert await find_all(harness.store, Filter(created_before_ms=start + 1)) == ids[:1]

    async def test_a_filter_by_due_time_includes_its_start_and_excludes_its_end(self, harness: Harness) -> None:
        now = harness.store.now()
        ids = await put(harness.store, *[new(due=after(delay)) for delay in (1_000, 2_000, 3_000)])
        assert await find_all(harness.store, Filter(due_after_ms=now + 2_000, due_before_ms=now + 3_000)) == [ids[1]]
        assert sorted(await find_all(harness.store, Filter(due_after_ms=now + 1_001))) == sorted(ids[1:])
        assert await find_all(harness.store, Filter(due_before_ms=now + 1_001)) == ids[:1]

    async def test_a_filter_by_end_includes_its_start_and_excludes_its_end(self, harness: Harness) -> None:
        start = harness.store.now()
        ids = []
        for state in ("succeeded", "failed", "cancelled"):
            ids.append(await in_state(harness.store, state))
            await harness.advance(1)
        found = await find_all(harness.store, Filter(finished_after_ms=start + 1_000, finished_before_ms=start + 2_000))
        assert found == [ids[1]]

    async def test_a_filter_by_end_finds_no_live_jobs(self, harness: Harness) -> None:
        await in_state(harness.store, "running")
        await put_one(harness.store)
        assert await find_all(harness.store, Filter(finished_before_ms=harness.store.now() + 10**9)) == []
        assert await find_all(harness.store, Filter(finished_after_ms=0)) == []

    async def test_every_part_of_a_filter_must_match(self, harness: Harness) -> None:
        both, *_ = await put(
            harness.store, new(queue="a", tenant="x"), new(queue="a", tenant="y"), new(queue="b", tenant="x")
        )
        assert await find_all(harness.store, Filter(queue="a", tenant="x", states=("waiting",))) == [both]

    async def test_a_filter_is_a_text_and_not_a_pattern(self, harness: Harness) -> None:
        await put(harness.store, new(queue="abc", tenant="abc", name="abc", key="abc"))
        for filter in (Filter(queue="%"), Filter(tenant="a_c"), Filter(name="a.*"), Filter(unique_key="ABC")):
            assert await find_all(harness.store, filter) == []


class CountContract:
    """Counts and statistics."""

    async def test_an_empty_store_counts_nothing(self, harness: Harness) -> None:
        assert await harness.store.count(EVERYTHING) == []

    async def test_counts_are_by_queue_name_and_state_without_zeros(self, harness: Harness) -> None:
        await in_state(harness.store, "failed", new(queue="a", name="x"))
        await put(harness.store, *[new(queue="a", name="x") for _ in range(3)], new(queue="a", name="y"))
        await in_state(harness.store, "running", new(queue="b", name="x"))
        counts = await harness.store.count(EVERYTHING)
        assert sorted((one.queue, one.name, one.state, one.count) for one in counts) == [
            ("a", "x", "failed", 1),
            ("a", "x", "waiting", 3),
            ("a", "y", "waiting", 1),
            ("b", "x", "running", 1),
        ]

    async def test_counts_follow_a_filter(self, harness: Harness) -> None:
        await put(harness.store, new(tenant="a"), new(tenant="b"), new(tenant="a"))
        assert await harness.store.count(Filter(tenant="a")) == [Count("mail", "send", "waiting", 2)]
        assert await harness.store.count(Filter(states=("failed",))) == []

    async def test_stats_count_each_state(self, harness: Harness) -> None:
        for state in (*FINAL, "running", "waiting"):
            await in_state(harness.store, state)
        (line,) = await harness.store.stats()
        assert (line.queue, line.name) == ("mail", "send")
        counts = (line.waiting, line.running, line.succeeded, line.failed, line.cancelled)
        assert counts == (1, 1, 1, 1, 1)

    async def test_stats_are_per_queue_and_name(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a", name="x"), new(queue="a", name="y"), new(queue="b", name="x"))
        assert _places(await harness.store.stats()) == [("a", "x"), ("a", "y"), ("b", "x")]
        assert _places(await harness.store.stats("a")) == [("a", "x"), ("a", "y")]
        assert _places(await harness.store.stats(name="x")) == [("a", "x"), ("b", "x")]
        assert _places(await harness.store.stats("b", "y")) == []

    async def test_stats_have_the_waiting_time_of_the_oldest_due_job(self, harness: Harness) -> None:
        await put(harness.store, new(due=after(1_000)), new(due=after(2_000)), new(due=after(60_000)))
        await harness.advance(5)
        (line,) = await harness.store.stats()
        assert line.oldest_waiting_ms == 4_000

    async def test_jobs_that_are_not_due_have_no_waiting_time(self, harness: Harness) -> None:
        await put_one(harness.store, new(due=after(60_000)))
        await in_state(harness.store, "running")
        await harness.advance(5)
        (line,) = await harness.store.stats()
        assert line.oldest_waiting_ms is None

    async def test_stats_have_the_durations_of_succeeded_runs(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(4)])
        for claimed in await claim(harness.store):
            await harness.advance(1)
            await settle(harness.store, succeed(claimed))
        (line,) = await harness.store.stats()
        assert line.average_ms == pytest.approx(2_500)
        assert line.p50_ms is not None
        assert 2_000 <= line.p50_ms <= 3_000
        assert line.p95_ms is not None
        assert 3_000 < line.p95_ms <= 4_000
        assert line.p99_ms is not None
        assert line.p95_ms <= line.p99_ms <= 4_000

    async def test_stats_without_a_succeeded_run_have_no_durations(self, harness: Harness) -> None:
        await started(harness.store)
        await harness.advance(1)
        await in_state(harness.store, "failed")
        (line,) = await harness.store.stats()
        assert (line.average_ms, line.p50_ms, line.p95_ms, line.p99_ms) == (None, None, None, None)


def _places(lines: list[Stats]) -> list[tuple[str, str]]:
    return sorted((line.queue, line.name) for line in lines)
