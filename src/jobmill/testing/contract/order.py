"""`find` for one queue and one state: the order that people expect, and filters by content."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Reprioritize
from jobmill.core.job import State
from jobmill.core.lifecycle import Errored, Policy, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import SEARCHED_PER_PAGE, CountUpTo, Filter, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    QUEUE,
    all_pages,
    claim_ids,
    claim_one,
    end,
    find_all,
    in_state,
    new,
    put,
    put_one,
    turns,
)

WAITING = Filter(queue=QUEUE, states=("waiting",))
RUNNING = Filter(queue=QUEUE, states=("running",))


class OrderContract:
    """Waiting in claim order, running longest first, final latest first."""

    async def test_waiting_jobs_come_as_they_will_be_claimed(self, harness: Harness) -> None:
        priorities = [5, 0, 9, 0, 5, 1]
        for number, priority in enumerate(priorities):
            await put_one(harness.store, new(f"job-{number}", name=f"name-{number % 3}", priority=priority))
            await harness.advance(0.001)
        found = await find_all(harness.store, WAITING, 2)
        names = tuple(f"name-{number}" for number in range(3))
        assert (
            found
            == await claim_ids(harness.store, names=names)
            == ["job-1", "job-3", "job-5", "job-0", "job-4", "job-2"]
        )

    async def test_jobs_due_later_come_by_due_time_after_due_jobs(self, harness: Harness) -> None:
        await put(
            harness.store, new("far", due=after(9_000)), new("near", due=after(1_000)), new("mid", due=after(5_000))
        )
        await put(harness.store, new("due"))
        assert await find_all(harness.store, WAITING, 2) == ["due", "near", "mid", "far"]

    async def test_running_jobs_come_longest_first(self, harness: Harness) -> None:
        ids = ["job-b", "job-a", "job-c"]
        await put(harness.store, *[new(id) for id in ids])
        claimed = []
        for _ in ids:
            claimed.append((await claim_one(harness.store)).job.id)
            await harness.advance(1)
        assert await find_all(harness.store, RUNNING, 2) == claimed

    @pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
    async def test_final_jobs_come_latest_first(self, harness: Harness, state: State) -> None:
        ids = []
        for number in range(5):
            ids.append(await in_state(harness.store, state, new(f"job-{(number * 3) % 5}")))
            await harness.advance(1)
        assert await find_all(harness.store, Filter(queue=QUEUE, states=(state,)), 2) == ids[::-1]

    @pytest.mark.parametrize("state", ["waiting", "running", "succeeded", "cancelled"])
    async def test_previous_cursors_lead_back(self, harness: Harness, state: State) -> None:
        for number in range(7):
            await in_state(harness.store, state, new(f"job-{number}", name=f"name-{number}"))
            await harness.advance(0.001 * (number % 2))
        wanted = Filter(queue=QUEUE, states=(state,))
        pages = [page for page in await all_pages(harness.store, wanted, 3) if page.jobs]
        forth = [job.id for page in pages for job in page.jobs]
        assert len(forth) == len(set(forth)) == 7
        back, previous = [job.id for job in pages[-1].jobs], pages[-1].previous
        for _ in turns():
            if previous is None:
                break
            page = await harness.store.find(wanted, previous, 3)
            back, previous = [job.id for job in page.jobs] + back, page.previous
        assert back == forth

    async def test_a_page_after_a_job_that_is_gone(self, harness: Harness) -> None:
        for number in range(4):
            await put_one(harness.store, new(f"job-{number}"))
            await harness.advance(0.001)
        first = await harness.store.find(WAITING, None, 2)
        assert (await claim_ids(harness.store, n=2)) == ["job-0", "job-1"]
        assert first.next is not None
        rest = [job.id for job in (await harness.store.find(WAITING, first.next, 10)).jobs]
        assert set(rest) <= {"job-2", "job-3"}


class ContentContract:
    """Filters by recurrence, prefix of the name and fields of the payload."""

    async def test_recurring_jobs_or_others(self, harness: Harness) -> None:
        rule = Recurrence(key="k", every_ms=60_000)
        await put(harness.store, new("once"), new("again", key="k", recurrence=rule))
        assert await find_all(harness.store, Filter(recurring=False)) == ["once"]
        (found,) = (await harness.store.find(Filter(recurring=True))).jobs
        assert found.recurrence is not None
        assert (await harness.store.count_up_to(Filter(queue=QUEUE, recurring=True), 10)).count == 1
        assert (
            await harness.store.count_up_to(Filter(queue=QUEUE, states=("waiting",), recurring=True), 10)
        ).count == 1

    async def test_jobs_that_had_errors_or_others(self, harness: Harness) -> None:
        """Those of them that wait are being retried."""
        wrong = Errored(error="no luck", delay_ms=0)
        for id, last in (("retried", None), ("given-up", Errored(error="x", final=True)), ("recovered", Succeeded())):
            await put_one(harness.store, new(id))
            await end(harness.store, await claim_one(harness.store), wrong, Policy(max_attempts=9))
            if last is not None:
                await end(harness.store, await claim_one(harness.store), last)
            else:
                await harness.store.change([id], Reprioritize(priority=9))  # the next claims are of the other jobs
        await in_state(harness.store, "succeeded", new("lucky", priority=0))
        await put_one(harness.store, new("new"))
        assert sorted(await find_all(harness.store, Filter(errored=True), 1)) == ["given-up", "recovered", "retried"]
        assert sorted(await find_all(harness.store, Filter(errored=False), 1)) == ["lucky", "new"]
        for wanted, ids in ((True, ["retried"]), (False, ["new"])):
            waiting = Filter(queue=QUEUE, states=("waiting",), errored=wanted)
            assert await find_all(harness.store, waiting) == ids
            assert (await harness.store.count_up_to(waiting, 10)).count == 1

    async def test_a_prefix_of_the_name(self, harness: Harness) -> None:
        names = ["mail.send", "mail.open", "mail_x", "MAIL.send", "mail%", "mai"]
        await put(harness.store, *[new(name, name=name) for name in names])
        assert sorted(await find_all(harness.store, Filter(name_prefix="mail."))) == ["mail.open", "mail.send"]
        assert await find_all(harness.store, Filter(name_prefix="mail%")) == ["mail%"]
        assert await find_all(harness.store, Filter(name_prefix="mail_")) == ["mail_x"]
        assert (await harness.store.count_up_to(Filter(name_prefix="mail"), 10)).count == 4

    async def test_the_class_of_the_last_error(self, harness: Harness) -> None:
        jobs: dict[str, list[str | None]] = {"a": ["ValueError"], "b": ["ValueError", "app.MailError"], "c": [None]}
        for id, kinds in jobs.items():
            await put_one(harness.store, new(id))
            for kind in kinds:
                errored = Errored(error="no luck", error_type=kind, delay_ms=0)
                await end(harness.store, await claim_one(harness.store), errored, Policy(max_attempts=9))
            await end(
                harness.store, await claim_one(harness.store), Errored(error="x", error_type=kinds[-1], final=True)
            )
        await put_one(harness.store, new("waiting"))
        assert await find_all(harness.store, Filter(error_type="ValueError")) == ["a"]
        failed = Filter(queue=QUEUE, states=("failed",), error_type="app.MailError")
        assert await find_all(harness.store, failed) == ["b"]
        assert (await harness.store.count_up_to(failed, 10)).count == 1
        assert await find_all(harness.store, Filter(error_type="Error")) == []

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"to": "ada"}, "ac"),
            ({"n": 1}, "a"),
            ({"n": True}, "b"),
            ({"n": None}, "c"),
            ({"n": 1.5}, "d"),
            ({"to": "ada", "n": 1}, "a"),
            ({"to": "ad"}, ""),
            ({"absent": None}, ""),
            ({"a.b": "$x"}, "d"),
            ({'quo"te': "“ö” 'x' \\ \""}, "b"),
        ],
    )
    async def test_fields_of_the_payload(self, harness: Harness, wanted: dict[str, Any], expected: str) -> None:
        payloads = {
            "a": {"to": "ada", "n": 1},
            "b": {"to": "bob", "n": True, 'quo"te': "“ö” 'x' \\ \""},
            "c": {"to": "ada", "n": None},
            "d": {"to": ["ada"], "n": 1.5, "a.b": "$x"},
        }
        await put(harness.store, *[new(id, payload=payload) for id, payload in payloads.items()])
        await put(harness.store, new("list", payload=["to", "ada"]), new("text", payload="ada"), new("none"))
        assert "".join(sorted(await find_all(harness.store, Filter(payload=wanted)))) == expected
        assert (await harness.store.count_up_to(Filter(queue=QUEUE, payload=wanted), 10)).count == len(expected)

    @pytest.mark.parametrize("wanted", [Filter(payload={"to": "ada"}), structs.replace(WAITING, tenant="ada")])
    async def test_a_search_through_more_jobs_than_one_page_examines(self, harness: Harness, wanted: Filter) -> None:
        total = SEARCHED_PER_PAGE + 500
        ids, expected = [f"job-{number:05}" for number in range(total)], {"job-00000", "job-05000", f"job-{total - 1}"}
        for start in range(0, total, 1_000):
            some = [
                new(id, payload={"to": "ada"}, tenant="ada") if id in expected else new(id, payload={"to": "bob"})
                for id in ids[start : start + 1_000]
            ]
            await harness.store.enqueue(some)
        pages = await all_pages(harness.store, wanted, 2)
        forth = [job.id for page in pages for job in page.jobs]
        assert set(forth) == expected
        assert len(forth) == len(expected)
        back, previous = [job.id for job in pages[-1].jobs], pages[-1].previous
        for _ in turns():
            if previous is None:
                break
            page = await harness.store.find(wanted, previous, 2)
            back, previous = [job.id for job in page.jobs] + back, page.previous
        assert back == forth
        counted = await harness.store.count_up_to(wanted, 100)
        assert counted.count == 3 if counted.exact else counted.count <= 3
        assert await harness.store.count_up_to(wanted, 1) == CountUpTo(1, exact=False)

    async def test_the_first_page_of_a_large_queue_behind_newer_jobs_is_full(self, harness: Harness) -> None:
        for queue in ("older", "newer"):
            for _ in range(SEARCHED_PER_PAGE // 1_000 + 1):
                await harness.store.enqueue([new(queue=queue) for _ in range(1_000)])
        page = await harness.store.find(Filter(queue="older"), None, 20)
        assert [job.queue for job in page.jobs] == ["older"] * 20

    async def test_payloads_of_final_jobs_and_of_large_ones(self, harness: Harness) -> None:
        await in_state(harness.store, "succeeded", new("done", payload={"to": "ada"}))
        await put_one(harness.store, new("large", payload={"to": "ada", "text": "x" * 100_000}))
        await put_one(harness.store, new("other", payload={"to": "bob"}))
        page = await harness.store.find(Filter(payload={"to": "ada"}))
        assert {job.id for job in page.jobs} == {"done", "large"}
        assert page.partial is False

    async def test_a_payload_that_cannot_be_read_does_not_match(self, harness: Harness) -> None:
        await put(harness.store, new("good", payload={"to": "ada"}), new("bad", payload={"to": "ada"}))
        await harness.corrupt("bad")
        assert await find_all(harness.store, Filter(payload={"to": "ada"})) == ["good"]
