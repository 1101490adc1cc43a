"""Flows: the list, one flow as a graph, what is around a job, retry and cancel, and who may see and do what."""

from __future__ import annotations

import json
from typing import Any

import pytest

import jobmill
from jobmill import Access, Client, Context, Dashboard
from jobmill.dashboard.graph import GraphNode, draw, layers
from jobmill.dashboard.screens.flow import MAX_DRAWN
from jobmill.dashboard.screens.flows import FLOWS_SHOWN
from jobmill.dashboard.shown import HIDDEN
from jobmill.handlers.draft import Draft
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.filterwarnings("error")


def make_handlers(jobs: Client) -> dict[str, Any]:
    @jobs.handler(max_attempts=1)
    async def fetch(url: str) -> str:
        if url == "broken":
            raise OSError(f"no such page: {url}")
        return url

    @jobs.handler(max_attempts=1)
    async def merge(pages: list[str]) -> str:
        return ",".join(pages)

    return {"fetch": fetch, "merge": merge}


async def make_flow(jobs: Client, *urls: str, **options: Any) -> str:
    """Jobs fetch, and a job merge that waits for all of them; the id of the flow."""
    known = jobs.handlers if "fetch" in jobs.handlers else make_handlers(jobs)
    fetch, merge = known["fetch"].options(**options), known["merge"].options(**options)
    drafts: list[Draft[str]] = [fetch.draft(url=url) for url in urls]
    return (await merge.draft(pages=jobs.group(drafts).results).enqueue()).flow.id


async def work(jobs: Client) -> None:
    while (await jobs.tick(limit=100)).claimed:
        pass


# ---------------------------------------------------------------------------------------------------- list


async def test_no_flows_says_what_a_flow_is(visitor: Visitor) -> None:
    page = await visitor.get("/flows")
    assert "There are no flows Jobs that wait for each other and are enqueued together are a flow." in page.words
    assert "There are no more flows" in (await visitor.get("/flows?before=0")).words


async def test_flows_are_listed_with_their_progress(jobs: Client, visitor: Visitor) -> None:
    done = await make_flow(jobs, "a", "b")
    await work(jobs)
    waiting = await make_flow(jobs, "a")
    page = await visitor.get("/flows")
    assert "merge" in page.words
    assert "succeeded 3 of 3" in page.words
    assert "waiting 0 of 2" in page.words
    assert 'aria-label="3 succeeded"' in page.text
    rows = (await visitor.json("/flows"))["flows"]
    assert [(row["id"], row["name"], row["word"], row["states"]) for row in rows] == [
        (waiting, "merge", "waiting", {"waiting": 2}),
        (done, "merge", "succeeded", {"succeeded": 3}),
    ]


async def test_a_failed_flow_and_one_that_still_runs(jobs: Client, visitor: Visitor) -> None:
    await make_flow(jobs, "broken", "a")
    await work(jobs)
    row = (await visitor.json("/flows"))["flows"][0]
    assert (row["shape"], row["done"], row["total"], row["states"]) == ("failed", 3, 3, {"succeeded": 1, "failed": 2})


async def test_pages_of_flows(jobs: Client, visitor: Visitor) -> None:
    ids = [await make_flow(jobs, "a", id=None) for _ in range(FLOWS_SHOWN + 3)]
    first = await visitor.json("/flows")
    assert [row["id"] for row in first["flows"]] == ids[:2:-1]
    second = await visitor.json(f"/flows?before={first['next']}")
    assert ([row["id"] for row in second["flows"]], second["next"]) == (ids[2::-1], None)
    page = await visitor.get("/flows")
    assert f"before={first['next']}" in page.text


async def test_a_large_flow_is_not_counted_in_the_list(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, *["a"] * 1_000)
    (row,) = (await visitor.json("/flows"))["flows"]
    assert (row["id"], row["exact"]) == (id, False)
    assert "1,000 jobs or more" in (await visitor.get("/flows")).words


# ---------------------------------------------------------------------------------------------------- one flow


async def test_a_flow_is_drawn_and_listed(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, "a", "broken")
    await work(jobs)
    page = await visitor.get(f"/flows/{id}")
    data = await visitor.json(f"/flows/{id}")
    assert (data["word"], data["done"], data["total"], data["is_drawn"]) == ("failed", 3, 3, True)
    first, second, last = data["jobs"]
    assert {first["name"], second["name"]} == {"fetch"}
    assert (last["name"], sorted(last["after"])) == ("merge", sorted([first["id"], second["id"]]))
    assert page.text.count('class="node ') == 3
    assert page.text.count('class="edge"') == 2
    for job in data["jobs"]:
        assert f'<a href="/jobs/{job["id"]}"><g class="node ' in page.text
    assert "no such page: broken" in page.words
    assert "<title id=" in page.text
    assert "<desc id=" in page.text
    assert "Retry 2 failed…" in page.words
    assert "Cancel flow…" not in page.words


async def test_many_jobs_of_a_name_are_one_box(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, *"abcdef")
    page = await visitor.get(f"/flows/{id}")
    assert page.text.count('class="node ') == 2
    assert "fetch × 6" in page.words
    assert f"q=name%3Afetch+flow%3A{id}" in page.text
    assert len((await visitor.json(f"/jobs?q=name:fetch+flow:{id}"))["jobs"]) == 6


async def test_a_flow_that_is_too_large_for_a_picture(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, "broken", *["a"] * MAX_DRAWN)
    await work(jobs)
    page, data = await visitor.get(f"/flows/{id}"), await visitor.json(f"/flows/{id}")
    assert 'class="node ' not in page.text
    assert "Jobs by name" in page.words
    assert "Failed jobs" in page.words
    assert [(one["name"], one["states"]) for one in data["names"]] == [
        ("fetch", {"succeeded": MAX_DRAWN, "failed": 1}),
        ("merge", {"failed": 1}),
    ]
    assert sorted(one["name"] for one in data["jobs"]) == ["fetch", "merge"]
    assert data["name"] == "merge"


async def test_a_flow_that_does_not_exist(visitor: Visitor) -> None:
    page = await visitor.get("/flows/nothing")
    assert (page.status, "There is no flow with this id" in page.words) == (404, True)
    assert (await visitor.get("/ask/flow?act=flow_retry&id=nothing")).status == 404


async def test_a_job_that_waits_for_a_job_of_another_flow(jobs: Client, visitor: Visitor) -> None:
    handlers = make_handlers(jobs)
    outside = await handlers["fetch"].enqueue(url="x")
    flow = (await handlers["merge"].draft(pages=["a"]).after(outside).enqueue()).flow
    (job,) = (await visitor.json(f"/flows/{flow.id}"))["jobs"]
    assert (job["after"], job["after_others"]) == ([], 1)
    assert "1 outside of this list" in (await visitor.get(f"/flows/{flow.id}")).words


# ---------------------------------------------------------------------------------------------------- acts


async def test_retry_asks_and_requeues_what_failed(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, "a", "broken")
    await work(jobs)
    asked = await visitor.get(f"/ask/flow?act=flow_retry&id={id}")
    assert "Retry merge? " in asked.words
    assert "2 will be requeued 2 failed." in asked.words
    assert "1 will be left as it is Reason: it is succeeded." in asked.words
    assert "Requeue 2 jobs" in asked.words
    page = await visitor.act("flow_retry", id=id, note="page is back", back=f"/flows/{id}")
    assert "2 jobs of the flow were requeued." in page.words
    assert (await visitor.json(f"/flows/{id}"))["states"] == {"waiting": 2, "succeeded": 1}
    (entry,) = (await visitor.json("/audit"))["entries"]
    assert (entry["what"], entry["who"], entry["count"], entry["note"]) == (
        "flow_retry",
        "dashboard",
        2,
        "page is back",
    )
    assert entry["which"] == [f"flow:{id}"]
    again = await visitor.act("flow_retry", id=id, back=f"/flows/{id}")
    assert "No job of the flow was requeued." in again.words


async def test_cancel_asks_and_cancels_what_has_not_ended(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, "a", "b")
    asked = await visitor.get(f"/ask/flow?act=flow_cancel&id={id}")
    assert "3 will be cancelled 3 waiting." in asked.words
    page = await visitor.act("flow_cancel", id=id, back=f"/flows/{id}")
    assert "3 jobs of the flow were cancelled." in page.words
    assert (await visitor.json(f"/flows/{id}"))["word"] == "cancelled"
    entry = (await visitor.json("/audit"))["entries"][0]
    assert (entry["what"], entry["count"]) == ("flow_cancel", 3)
    assert "No job will be changed" in (await visitor.get(f"/ask/flow?act=flow_cancel&id={id}")).words


async def test_who_may_not_act_is_refused(jobs: Client) -> None:
    id = await make_flow(jobs, "a", "b")
    visitors = {
        "read-only": Visitor(Dashboard(jobs, read_only=True)),
        "another permission": Visitor(Dashboard(jobs, authorize=lambda _: Access({"cancel", "requeue"}))),
    }
    for visitor in visitors.values():
        page = await visitor.get(f"/flows/{id}")
        assert page.status == 200
        assert "Cancel flow…" not in page.words
        for act in ("flow_retry", "flow_cancel"):
            assert (await visitor.get(f"/ask/flow?act={act}&id={id}")).status == 403
            assert (await visitor.act(act, id=id)).status == 403
    assert (await jobs.store.flow_counts([id]))[id].states == {"waiting": 3}
    one = Visitor(Dashboard(jobs, authorize=lambda _: Access({"flow_cancel"})))
    assert (await one.get(f"/ask/flow?act=flow_cancel&id={id}")).status == 200
    assert (await one.get(f"/ask/flow?act=flow_retry&id={id}")).status == 403
    assert (await one.get(f"/ask/flow?act=remove&id={id}")).status == 400


# ---------------------------------------------------------------------------------------------------- tenants


async def make_mixed_flow(jobs: Client) -> dict[str, str]:
    """A flow with jobs of two tenants: merge of acme waits for a failed job of globex and for one of acme."""
    handlers = make_handlers(jobs)
    theirs = handlers["fetch"].options(tenant="globex", id="theirs").draft(url="broken")
    ours = handlers["fetch"].options(tenant="acme", id="ours").draft(url="a")
    merge = handlers["merge"].options(tenant="acme", id="last").draft(pages=["x"])
    await merge.after(theirs, ours, even_if_failed=True).enqueue()
    return {"flow": "last"}


async def test_a_visitor_of_a_tenant_sees_no_jobs_of_others_through_a_flow(jobs: Client) -> None:
    await make_mixed_flow(jobs)
    access = Access(Access.ALL.actions, tenants={"aaa", "acme"})
    visitor = Visitor(Dashboard(jobs, authorize=lambda _: access))
    assert (await visitor.get("/flows")).status == 403
    page = await visitor.get("/jobs/ours")
    assert 'href="/flows/last?tenant=acme"' in page.text
    page, data = await visitor.get("/flows/last?tenant=acme"), await visitor.json("/flows/last?tenant=acme")
    assert sorted(one["id"] for one in data["jobs"]) == ["last", "ours"]
    assert (data["total"], data["tenant"]) == (2, "acme")
    assert "theirs" not in page.text
    assert "theirs" not in json.dumps(data)
    assert (await visitor.get("/flows/last?tenant=globex")).status == 403
    assert (await visitor.get("/flows/last")).status == 404  # the first of the tenants, which has no job in it
    around = await visitor.json("/related/last")
    assert [one["id"] for one in around["dependencies"]] == ["ours"]
    assert "theirs" not in (await visitor.get("/related/last")).text
    assert (await visitor.get("/related/theirs")).status == 404


async def test_a_visitor_of_a_tenant_changes_no_jobs_of_others(jobs: Client) -> None:
    await make_mixed_flow(jobs)
    access = Access(Access.ALL.actions, tenants={"acme"})
    visitor = Visitor(Dashboard(jobs, authorize=lambda _: access))
    assert "2 will be cancelled" in (await visitor.get("/ask/flow?act=flow_cancel&id=last")).words
    assert (await visitor.act("flow_cancel", id="last", tenant="globex")).status == 403
    await visitor.act("flow_cancel", id="last")
    states = {job.id: job.state for job in (await jobs.find(flow="last")).jobs}
    assert states == {"theirs": "waiting", "ours": "cancelled", "last": "cancelled"}
    await jobs.cancel("theirs")
    await visitor.act("flow_retry", id="last")
    states = {job.id: job.state for job in (await jobs.find(flow="last")).jobs}
    assert states == {"theirs": "cancelled", "ours": "waiting", "last": "waiting"}


# ---------------------------------------------------------------------------------------------------- around a job


async def test_what_a_job_waits_for_and_what_waits_for_it(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, "a", "broken")
    await work(jobs)
    words = (await visitor.get(f"/related/{id}")).words
    assert "the whole flow" in words
    assert "fetch failed" in words
    assert "OSError: no such page: broken" in words
    data = await visitor.json(f"/related/{id}")
    assert sorted(one["edge"] for one in data["dependencies"]) == ["failed", "succeeded"]
    (other,) = (await visitor.json(f"/related/{data['dependencies'][0]['id']}"))["dependents"]
    assert (other["id"], other["name"], other["shape"]) == (id, "merge", "failed")
    page = await visitor.get(f"/related/{id}")
    assert page.text.count('class="node ') == 3
    assert " here" in page.text
    blind = Visitor(Dashboard(jobs, authorize=lambda _: Access()))
    assert "no such page" not in (await blind.get(f"/related/{id}")).text
    assert "no such page" not in (await blind.get(f"/flows/{id}")).text
    page = await visitor.get(f"/jobs/{id}")
    assert f'hx-get="/related/{id}"' in page.text
    assert f'href="/flows/{id}"' in page.text


async def test_a_job_without_others(jobs: Client, visitor: Visitor) -> None:
    id = (await jobs.enqueue("send")).id
    assert "It waits for no job, and no job waits for it." in (await visitor.get(f"/related/{id}")).words


async def test_a_dependency_that_was_removed(jobs: Client, visitor: Visitor, clock: ManualClock) -> None:
    id = await make_flow(jobs, "a")
    await work(jobs)
    (first,) = [one["id"] for one in (await visitor.json(f"/related/{id}"))["dependencies"]]
    await jobs.remove(first)
    visitor.app.reads.forget()
    words = (await visitor.get(f"/related/{id}")).words
    assert "removed, it had succeeded" in words


async def test_steps_and_signals_are_shown_and_masked(jobs: Client, clock: ManualClock) -> None:
    @jobs.handler(max_attempts=1)
    async def book(context: Context) -> str:
        await context.step("reserve", dict, seat="7", card="4111")
        try:
            await context.step("charge", _fail)
        except jobmill.StepFailed:
            pass
        except ValueError:
            pass
        await context.step("mail", str, "sent")
        await context.step("large", lambda: "x" * 5_000)
        return str(await context.wait_for("approved", dict, timeout="3d"))

    id = (await book.enqueue()).id
    await jobs.tick()
    masked = Visitor(Dashboard(jobs, redact=("card",)))
    page = await masked.get(f"/related/{id}")
    assert "waits for the signal approved" in page.words
    assert "Waits for signal approved" in (await masked.get(f"/jobs/{id}")).words
    assert "4111" not in page.text
    data = await masked.json(f"/related/{id}")
    assert [(one["name"], one["result"], one["error"]) for one in data["steps"]] == [
        ("reserve", {"seat": "7", "card": HIDDEN}, None),
        ("charge", None, "ValueError: no money"),
        ("mail", "sent", None),
        ("large", None, None),
        ("wait for approved", clock() + 3 * 86_400_000, None),
    ]
    assert data["steps"][3]["size"] == 5_002
    await jobs.signal(id, "approved", {"by": "annabel", "card": "4111"})
    masked.app.reads.forget()
    data = await masked.json(f"/related/{id}")
    assert data["signals"] == [{"name": "approved", "value": {"by": "annabel", "card": HIDDEN}}]
    blind = await Visitor(Dashboard(jobs, authorize=lambda _: Access())).get(f"/related/{id}")
    for text in ("4111", "no money", "sent", "annabel"):
        assert text not in blind.text


def _fail() -> None:
    raise ValueError("no money")


async def test_a_flow_is_a_filter_of_the_search(jobs: Client, visitor: Visitor) -> None:
    id = await make_flow(jobs, "a", "b")
    await jobs.enqueue("send")
    data = await visitor.json(f"/jobs?q=flow:{id}")
    assert (len(data["jobs"]), data["chips"]) == (3, [f"flow:{id}"])
    assert len((await visitor.json(f"/jobs?q=flow:{id}&state=held"))["jobs"]) == 1


# ---------------------------------------------------------------------------------------------------- graph


def test_layers_by_longest_path() -> None:
    edges = [("b", "a"), ("c", "b"), ("c", "a"), ("e", "d"), ("e", "c")]
    assert layers("abcde", edges) == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 3}
    assert layers("ab", [("a", "b"), ("b", "a")]) == {"a": 0, "b": 0}
    chain = [str(number) for number in range(5_000)]
    assert max(layers(chain, list(zip(chain[1:], chain, strict=False))).values()) == 4_999


def test_texts_of_a_graph_are_escaped_and_cut() -> None:
    evil = "<script>alert(1)</script>" * 3
    svg = str(draw([GraphNode("a", evil, "failed", evil, "/jobs/a")], [], evil, {}))
    assert "<script>" not in svg
    assert "…" in svg


async def test_the_pages_of_a_flow_on_every_store(store_url: str) -> None:
    async with jobmill.connect(store_url) as client:
        visitor = Visitor(Dashboard(client))
        assert (await visitor.json("/flows"))["flows"] == []
        visitor.app.reads.forget()
        id = await make_flow(client, "a", "broken")
        await work(client)
        (row,) = (await visitor.json("/flows"))["flows"]
        assert (row["id"], row["states"], row["name"]) == (id, {"succeeded": 1, "failed": 2}, "merge")
        data = await visitor.json(f"/flows/{id}")
        assert [len(one["after"]) for one in data["jobs"]] == [0, 0, 2]
        around = await visitor.json(f"/related/{id}")
        assert sorted(one["edge"] for one in around["dependencies"]) == ["failed", "succeeded"]
        await visitor.act("flow_retry", id=id)
        assert (await visitor.json(f"/flows/{id}"))["states"] == {"waiting": 2, "succeeded": 1}
        await visitor.act("flow_cancel", id=id)
        assert (await visitor.json(f"/flows/{id}"))["states"] == {"succeeded": 1, "cancelled": 2}
