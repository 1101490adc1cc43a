"""Twelve workflows: chains, groups, a saga, an approval and more. Run it: `python examples/workflows.py`.

The jobs are in memory. With another URL the same program runs on SQLite, PostgreSQL, Redis or MongoDB:
`JOBMILL_URL=sqlite:///flows.db python examples/workflows.py`.
"""

import asyncio
import os
from dataclasses import dataclass

import jobmill
from jobmill import Context, JobOutcome

jobs = jobmill.connect(os.environ.get("JOBMILL_URL", "memory://"))


@dataclass
class Page:
    url: str
    text: str


@dataclass
class Approval:
    by: str
    ok: bool


# ------------------------------------------------------------------------ handlers, which know nothing of flows


@jobs.handler(max_attempts=1)
async def fetch(url: str) -> Page:
    if url == "broken":
        raise OSError("no such page")
    return Page(url, f"words of {url}")


@jobs.handler
async def parse(page: Page) -> list[str]:
    return page.text.split()


@jobs.handler
async def save(words: list[str]) -> int:
    return len(words)


@jobs.handler
async def merge(title: str, pages: list[Page]) -> str:
    return f"{title}: {', '.join(page.url for page in pages)}"


@jobs.handler
async def report(pages: list[JobOutcome[Page]]) -> str:
    return ", ".join(page.value.url if page.ok else f"{page.error}" for page in pages)


@jobs.handler
async def compare(left: list[str], right: list[str]) -> bool:
    return left == right


@jobs.handler
async def total(parts: list[str]) -> str:
    return " | ".join(parts)


@jobs.handler
async def tidy() -> str:
    return "tidy"


# ------------------------------------------------------------------------ flows: drafts that wait for each other


async def chain() -> int:
    """The result of a job is an argument of the next one."""
    page = fetch.draft(url="a")
    words = parse.draft(page.result)
    saved = await save.draft(words.result).enqueue()
    return await saved.result(timeout="30s")


async def fan_in() -> str:
    """Many jobs at once, then one with all their results. If one of them fails, so does the last one."""
    pages = jobs.group(fetch.draft(url=url) for url in ("a", "b"))
    merged = await merge.draft("both", pages=pages.results).enqueue()
    return await merged.result(timeout="30s")


async def fan_in_with_failures() -> str:
    """The last job runs, however the others end, and sees each outcome."""
    pages = jobs.group(fetch.draft(url=url) for url in ("a", "broken"))
    reported = await report.draft(pages=pages.outcomes).enqueue()
    return await reported.result(timeout="30s")


async def nested_groups() -> str:
    """A group is a value: groups of jobs that wait for groups."""
    regions = [
        merge.draft(region, pages=jobs.group(fetch.draft(url=region + number) for number in "12").results)
        for region in ("eu", "us")
    ]
    summed = await total.draft(parts=jobs.group(regions).results).enqueue()
    return await summed.result(timeout="30s")


async def diamond() -> bool:
    """Two jobs wait for one, and one waits for both."""
    page = fetch.draft(url="a")
    left, right = parse.draft(page.result), parse.draft(page.result)
    same = await compare.draft(left=left.result, right=right.result).enqueue()
    return await same.result(timeout="30s")


async def progress_of_many() -> str:
    """A group without a last job is a flow as well: how far it is."""
    flow = await jobs.group(fetch.draft(url=str(number)) for number in range(200)).enqueue()
    while not (progress := await flow.progress()).is_done:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return f"{progress.done} of {progress.total}, {progress.failed} failed"


async def order_only() -> str:
    """A job that runs after another one, even if that one fails, and gets nothing from it."""
    done = fetch.draft(url="broken")
    last = await tidy.draft().after(done, even_if_failed=True).enqueue()
    return await last.result(timeout="30s")


# ------------------------------------------------------------------------ durable handlers


@jobs.handler
async def crawl(context: Context, url: str) -> int:
    """Run other jobs, and continue with what they returned. The slot of this job is free meanwhile."""
    page = await context.run(fetch.draft(url=url))
    more = await context.run_all(fetch.draft(url=word) for word in page.text.split())
    return len(more)


async def reserve(order: str) -> str:
    return f"seat of {order}"


async def charge(order: str, key: str) -> str:
    raise ValueError(f"no money for {key.partition(':')[2]}")


async def unreserve(seat: str) -> None:
    print(f"  (the {seat} is free again)")


@jobs.handler(max_attempts=2, backoff="10ms")
async def book(context: Context, order: str) -> str:
    """A saga: each step is done once, also if the job is retried; what is undone stays undone."""
    seat = await context.step("reserve", reserve, order)
    try:
        return await context.step("charge", charge, order, key=context.key("charge"))
    except Exception:
        await context.step("unreserve", unreserve, seat)
        raise


@jobs.handler
async def ship(context: Context, order: str) -> str:
    """Wait for a person, for three days at most, and cool down before the parcel goes."""
    answer = await context.wait_for("approved", Approval, timeout="3d")
    if answer is None or not answer.ok:
        return "refused"
    await context.sleep("cool down", "50ms")
    return f"shipped, approved by {answer.by}"


async def saga() -> str:
    booked = await book.enqueue(order="7")
    try:
        return await booked.result(timeout="30s")
    except jobmill.JobFailed as error:
        return error.job.error or ""


async def approval() -> str:
    shipped = await ship.enqueue(order="7")
    await jobs.signal(shipped.id, "approved", Approval(by="ann", ok=True))
    return await shipped.result(timeout="30s")


# ------------------------------------------------------------------------ acting on flows


async def retry_a_branch() -> str:
    """What failed, and what failed because of it, runs again. Here it fails again."""
    pages = jobs.group(fetch.draft(url=url) for url in ("a", "broken"))
    merged = await merge.draft("both", pages=pages.results).enqueue()
    while not (await merged.flow.progress()).is_done:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return f"{await merged.flow.retry()} jobs run again"


async def cancel_all() -> str:
    """Cancel what has not ended."""
    later = fetch.options(delay="1h").draft(url="a")
    words = await parse.draft(later.result).enqueue()
    return f"{await words.flow.cancel()} jobs cancelled"


async def main() -> None:
    worker = jobmill.Worker(jobs, concurrency=10)
    await worker.start()
    for program in PROGRAMS:
        print(f"{program.__name__}: {await program()}")
    print(f"crawl: {await (await crawl.enqueue(url='a')).result(timeout='30s')} pages")
    await worker.stop()
    await jobs.close()


PROGRAMS = (
    chain,
    fan_in,
    fan_in_with_failures,
    nested_groups,
    diamond,
    progress_of_many,
    order_only,
    saga,
    approval,
    retry_a_branch,
    cancel_all,
)

if __name__ == "__main__":
    asyncio.run(main())
