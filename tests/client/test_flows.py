"""Drafts that wait for each other: what is enqueued, with which ids, and what is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from jobmill import Client, Group, InvalidValue, JobmillError, JobNotFound, JobOutcome
from jobmill.core.changes import Changed
from jobmill.core.flows import Dependency, find_cycle
from jobmill.errors import DependencyFailed
from jobmill.handlers.draft import Draft
from jobmill.handlers.flow import Flow
from jobmill.handlers.placeholders import filled
from jobmill.testing import ManualClock


class Order(pydantic.BaseModel):
    number: int


def handlers(jobs: Client) -> tuple[Any, Any]:
    @jobs.handler
    async def fetch(url: str, tries: int = 1) -> str:
        return url

    @jobs.handler
    async def parse(page: Any, title: str = "", order: Order | None = None) -> int:
        return 1

    return fetch, parse


async def edges(jobs: Client, id: str) -> list[tuple[str, str]]:
    return [(edge.id, edge.if_failed) for edge in await jobs.store.dependencies(id)]


class TestDrafts:
    async def test_a_result_as_an_argument(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        page = fetch.draft(url="a")
        enqueued = await parse.draft(page.result, title="x").enqueue()
        job = await enqueued.job()
        assert job.payload == {"page": {"$result": 0}, "title": "x"}
        (edge,) = await jobs.store.dependencies(job.id)
        first = await jobs.get(edge.id)
        assert (first.name, first.payload, first.flow) == ("fetch", {"url": "a"}, job.id)
        assert (job.flow, job.dependencies, edge.if_failed) == (job.id, 1, "fail")
        assert enqueued.flow.id == job.id

    async def test_placeholders_deep_in_arguments(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        a, b = fetch.draft(url="a"), fetch.draft(url="b")
        draft = parse.draft({"all": [a.result, {"x": b.outcome}], "$result": 1}, order=Order(number=3))
        job = await (await draft.enqueue()).job()
        assert job.payload["page"] == {"all": [{"$result": 0}, {"x": {"$outcome": 1}}], "$result": 1}
        assert job.payload["order"] == {"number": 3}
        assert [if_failed for _, if_failed in await edges(jobs, job.id)] == ["fail", "run"]

    @pytest.mark.parametrize("name", ["parse", "unknown"])
    async def test_a_draft_by_name(self, jobs: Client, name: str) -> None:
        fetch, _ = handlers(jobs)
        draft = jobs.draft(name, {"page": [fetch.draft(url="a").result], "title": "x"})
        job = await (await draft.enqueue()).job()
        assert job.payload == {"page": [{"$result": 0}], "title": "x"}
        assert [if_failed for _, if_failed in await edges(jobs, job.id)] == ["fail"]
        if name == "parse":
            with pytest.raises(InvalidValue, match="Expected `str`"):
                jobs.draft(name, {"page": fetch.draft(url="a").result, "title": 1})

    async def test_a_group_is_one_placeholder(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        pages = jobs.group(fetch.draft(url=url) for url in "abc")
        other = fetch.draft(url="d")
        job = await (await parse.draft([other.result, pages.results, pages.outcomes]).enqueue()).job()
        assert job.payload["page"] == [{"$result": 0}, {"$results": [1, 3]}, {"$outcomes": [1, 3]}]
        assert [if_failed for _, if_failed in await edges(jobs, job.id)] == ["fail"] * 4
        assert job.dependencies == 4

    async def test_an_empty_group(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        empty: Group[str] = jobs.group([])
        job = await (await parse.draft(empty.results).enqueue()).job()
        assert (job.held, job.dependencies) == (None, 0)
        flow = await empty.enqueue()
        assert (await flow.progress()).total == 0
        assert fetch is not None

    async def test_groups_in_groups(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        inner = jobs.group(fetch.draft(url=url) for url in "ab")
        assert len(jobs.group([inner, fetch.draft(url="c")])) == 3
        assert [draft.name for draft in jobs.group([parse.draft(inner.results), *inner])] == ["parse", "fetch", "fetch"]

    async def test_equal_drafts_are_different_jobs(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        a, b = fetch.draft(url="same"), fetch.draft(url="same")
        assert a == b
        enqueued = await parse.draft([a.result, b.result]).enqueue()
        assert len({id for id, _ in await edges(jobs, enqueued.id)}) == 2

    async def test_one_draft_that_two_wait_for_is_one_job(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        a = fetch.draft(url="a")
        one, two = await jobs.enqueue_many([parse.draft(a.result), parse.draft(a.result)])
        assert await edges(jobs, one.id) == await edges(jobs, two.id)
        assert one.flow.id == two.flow.id
        assert (await one.flow.progress()).total == 3

    async def test_a_draft_that_others_wait_for_twice_in_a_list(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        a = fetch.draft(url="a")
        with pytest.raises(InvalidValue, match="only once"):
            await jobs.enqueue_many([a, a, parse.draft(a.result)])

    async def test_after_adds_no_second_edge(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        a = fetch.draft(url="a")
        draft = parse.draft(a.outcome).after(a).after(a, even_if_failed=True)
        assert [if_failed for _, if_failed in await edges(jobs, (await draft.enqueue()).id)] == ["fail"]

    async def test_after_jobs_in_the_store(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        first = await fetch.enqueue(url="a")
        second = await parse.draft(1).after(first).enqueue()
        third = await parse.draft(1).after(second.id, first, even_if_failed=True).enqueue()
        assert await edges(jobs, second.id) == [(first.id, "fail")]
        assert await edges(jobs, third.id) == [(second.id, "run"), (first.id, "run")]
        with pytest.raises(InvalidValue, match="nobody"):
            await parse.draft(1).after("nobody").enqueue()
        with pytest.raises(InvalidValue, match="after"):
            parse.draft(1).after(17)

    async def test_a_chain_of_order(self, jobs: Client) -> None:
        fetch, _ = handlers(jobs)
        last = await jobs.chain(*[fetch.draft(url=str(number)) for number in range(3)]).enqueue()
        assert (await last.flow.progress()).total == 3
        with pytest.raises(InvalidValue):
            jobs.chain()

    async def test_a_chain_of_ten_thousand(self, jobs: Client) -> None:
        fetch, _ = handlers(jobs)
        draft: Draft[str] = fetch.draft(url="0")
        for number in range(1, 10_000):
            draft = fetch.draft(url=str(number)).after(draft)
        with jobs.using(type(jobs.store)()) if jobs.store.name == "memory" else jobs.using(memory()):
            enqueued = await draft.enqueue()
            assert (await enqueued.flow.progress()).total == 10_000

    async def test_arguments_beside_a_result_are_validated(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        a = fetch.draft(url="a")
        with pytest.raises(InvalidValue, match="payload"):
            parse.draft(a.result, title=17)
        with pytest.raises(InvalidValue, match="nonsense"):
            parse.draft(a.result, nonsense=1)
        with pytest.raises(TypeError, match="not known before"):
            bool(a.result)
        with pytest.raises(TypeError, match="not known before"):
            list(jobs.group([a]).results)

    async def test_dedupe_needs_arguments_that_are_known(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        with pytest.raises(InvalidValue, match="dedupe"):
            parse.options(dedupe=True).draft(fetch.draft(url="a").result)

    async def test_a_job_without_a_flow_says_so(self, jobs: Client) -> None:
        fetch, _ = handlers(jobs)
        enqueued = await fetch.enqueue(url="a")
        with pytest.raises(JobmillError, match="no flow"):
            _ = enqueued.flow
        with pytest.raises(JobNotFound, match="no flow"):
            await jobs.flow("nothing")


class TestIds:
    async def test_ids_follow_from_the_id_of_the_last_draft(self, jobs: Client) -> None:
        fetch, parse = handlers(jobs)
        for status in ("created", "exists"):
            pages = jobs.group(fetch.draft(url=url) for url in "ab")
            last = await parse.options(id="nightly").draft(pages.results).enqueue()
            assert (last.id, last.status) == ("nightly", status)
            assert await edges(jobs, "nightly") == [("nightly.0", "fail"), ("nightly.1", "fail")]
        assert (await (await jobs.flow("nightly")).progress()).total == 3

    async def test_ids_follow_from_the_id_of_a_group(self, jobs: Client) -> None:
        fetch, _ = handlers(jobs)
        for _ in range(2):
            flow = await jobs.group((fetch.draft(url=url) for url in "ab"), id="import").enqueue()
            assert flow.id == "import"
        assert sorted([job.id async for job in jobs.find_all(flow="import")]) == ["import.0", "import.1"]

    async def test_circles_are_named(self, jobs: Client) -> None:
        fetch, _ = handlers(jobs)
        drafts = [fetch.options(id=id).draft(url=id).after(other) for id, other in ("ab", "bc", "ca")]
        with pytest.raises(InvalidValue, match="a > b > c > a|b > c > a > b|c > a > b > c"):
            await jobs.enqueue_many(drafts)
        with pytest.raises(InvalidValue, match="x > x"):
            await fetch.options(id="x").draft(url="x").after("x").enqueue()
        one = fetch.options(unique_key="k").draft(url="1")
        with pytest.raises(InvalidValue, match="circle"):
            await fetch.options(unique_key="k").draft(url="2").after(one).enqueue()
        assert await jobs.count() == []

    def test_a_circle_of_ten_thousand(self) -> None:
        waits_for = {str(number): [str((number + 1) % 10_000)] for number in range(10_000)}
        cycle = find_cycle(waits_for)
        assert cycle is not None
        assert len(cycle) == 10_001
        waits_for["9999"] = []
        assert find_cycle(waits_for) is None
        assert find_cycle({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) is None

    async def test_recurring_jobs_are_refused(self, jobs: Client) -> None:
        fetch, _ = handlers(jobs)
        recurring = fetch.options(every="1m", key="k").draft(url="a")
        with pytest.raises(InvalidValue, match="recurring"):
            await fetch.draft(url="b").after(recurring).enqueue()
        with pytest.raises(InvalidValue, match="recurring"):
            await recurring.after(fetch.draft(url="b")).enqueue()


class TestFilled:
    """Payloads with the results of dependencies."""

    EDGES: ClassVar = [
        Dependency(id="a", number=0, state="succeeded", result_json=msgspec.Raw(b'{"x":1}')),
        Dependency(id="b", number=1, state="failed", error="no luck"),
        Dependency(id="c", number=2, state="succeeded"),
        Dependency(id="d", number=3, state="cancelled"),
    ]

    def fill(self, payload: object) -> Any:
        return msgspec.json.decode(filled(msgspec.Raw(msgspec.json.encode(payload)), self.EDGES))

    def test_results_and_outcomes(self) -> None:
        assert self.fill({"p": {"$result": 0}, "q": [1, {"$results": [0, 1]}]}) == {"p": {"x": 1}, "q": [1, [{"x": 1}]]}
        assert self.fill({"p": {"$outcomes": [0, 2]}}) == {
            "p": [
                {"id": "a", "state": "succeeded", "error": None, "result": {"x": 1}},
                {"id": "b", "state": "failed", "error": "no luck"},
            ]
        }

    def test_objects_of_the_caller_that_look_alike(self) -> None:
        assert self.fill({"p": {"$$result": 0}, "q": {"$$$outcomes": 1}}) == {
            "p": {"$result": 0},
            "q": {"$$outcomes": 1},
        }
        assert self.fill({"p": {"$result": 0, "more": 1}}) == {"p": {"$result": 0, "more": 1}}
        assert self.fill({"p": {"$other": 0}}) == {"p": {"$other": 0}}

    def test_results_that_are_not_there(self) -> None:
        with pytest.raises(DependencyFailed, match="b failed: no luck"):
            self.fill({"$result": 1})
        with pytest.raises(DependencyFailed, match="d cancelled"):
            self.fill({"$result": 3})
        with pytest.raises(JobNotFound, match="dependency c"):
            self.fill({"$result": 2})

    def test_an_outcome(self) -> None:
        fine = msgspec.convert({"id": "a", "state": "succeeded", "result": {"number": 3}}, JobOutcome[dict[str, int]])
        assert (fine.ok, fine.value) == (True, {"number": 3})
        bad: JobOutcome[int] = JobOutcome(id="b", state="failed", error="no luck")
        assert not bad.ok
        with pytest.raises(DependencyFailed, match="job b failed: no luck"):
            _ = bad.value


def memory() -> Any:
    from jobmill.stores.memory.store import MemoryStore

    return MemoryStore()


class Ticking:
    """A client whose jobs run as soon as they are requeued, as beside a worker."""

    def __init__(self, jobs: Client, clock: ManualClock) -> None:
        self._jobs = jobs
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    async def requeue(self, **given: Any) -> Changed:
        changed = await self._jobs.requeue(**given)
        self._clock.advance(0.001)
        await self._jobs.tick()
        return changed


async def test_a_retry_requeues_a_job_once_that_fails_again(jobs: Client, clock: ManualClock) -> None:
    """A job that is refused lets the retry try again, and each round would run the failing job once more."""
    ran: list[str] = []

    @jobs.handler(max_attempts=1)
    async def fails(name: str) -> None:
        ran.append(name)
        raise OSError(name)

    elsewhere = await fails.enqueue("elsewhere")
    await jobs.tick()
    first = fails.draft("first")
    last = await fails.draft("last").after(first, elsewhere.id).enqueue()
    for _ in range(2):
        await jobs.tick()
    assert ran == ["elsewhere", "first"]
    assert await Flow(Ticking(jobs, clock), last.flow.id).retry() == 1
    assert ran == ["elsewhere", "first", "first"]
