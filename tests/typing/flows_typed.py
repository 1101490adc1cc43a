"""What type checkers see of flows: the results of drafts as arguments, groups, outcomes and durable handlers.

Nothing here runs: `dev.py check` has mypy read it. A wrong call that mypy did not refuse would leave an unused ignore,
which is an error as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import jobmill
from jobmill import Client, Context, Draft, Enqueued, Flow, FlowProgress, Group, JobOutcome

jobs: Client = jobmill.connect("memory://")


@dataclass
class Page:
    url: str


@jobs.handler
async def fetch(url: str) -> Page:
    return Page(url)


@jobs.handler
def parse(page: Page) -> list[str]:
    return [page.url]


@jobs.handler
async def merge(title: str, pages: list[Page]) -> str:
    return title


@jobs.handler
async def report(pages: list[JobOutcome[Page]], first: JobOutcome[Page] | None = None) -> int:
    return sum(page.ok for page in pages)


async def flows() -> None:
    page = fetch.draft(url="a")
    assert_type(page, Draft[Page])
    assert_type(page.result, Page)
    assert_type(page.outcome, JobOutcome[Page])
    assert_type(page.outcome.value, Page)
    assert_type(parse.draft(page.result), Draft[list[str]])
    assert_type(await parse.draft(page.result).after(page, "id", even_if_failed=True).enqueue(), Enqueued[list[str]])
    pages = jobs.group(fetch.draft(url=url) for url in "ab")
    assert_type(pages, Group[Page])
    assert_type(pages.results, list[Page])
    assert_type(pages.outcomes, list[JobOutcome[Page]])
    assert_type(await pages.enqueue(), Flow)
    merged = await merge.draft("x", pages=pages.results).enqueue()
    assert_type(await merged.result(), str)
    assert_type(await merged.flow.progress(), FlowProgress)
    assert_type(await jobs.flow("x"), Flow)
    report.draft(pages=pages.outcomes, first=page.outcome)

    parse.draft(merge.draft("x", pages=[]).result)  # type: ignore[arg-type]
    merge.draft("x", pages=pages.outcomes)  # type: ignore[arg-type]
    report.draft(pages=pages.results)  # type: ignore[arg-type]
    page.after(5)  # type: ignore[arg-type]
    jobs.group([5])  # type: ignore[arg-type]


async def charge(order: str, key: str) -> int:
    return len(order + key)


def reserve(order: str) -> str:
    return order


@jobs.handler
async def durable(context: Context, order: str) -> str:
    assert_type(await context.run(fetch.draft(url="a")), Page)
    assert_type(await context.run_all([fetch.draft(url="a")]), list[Page])
    assert_type(await context.step("charge", charge, order, key=context.key("charge")), int)
    assert_type(await context.step("reserve", reserve, order), str)
    assert_type(await context.wait_for("go", Page, timeout="3d"), Page | None)
    await context.sleep("nap", "1h")
    await context.step("charge", charge, 5, key="k")  # type: ignore[arg-type]
    await context.run(5)  # type: ignore[arg-type]
    assert await jobs.signal("id", "go", Page("a"))
    return order


@jobs.handler
def durable_sync(context: Context, order: str) -> str:
    assert_type(context.sync.run(fetch.draft(url="a")), Page)
    assert_type(context.sync.run_all([fetch.draft(url="a")]), list[Page])
    assert_type(context.sync.step("reserve", reserve, order), str)
    assert_type(context.sync.wait_for("go", Page), Page | None)
    context.sync.step("reserve", reserve, 5)  # type: ignore[arg-type]
    return order
