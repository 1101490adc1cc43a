"""A store in which everything happens that the dashboard can show, for tests and for pictures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import jobmill
from jobmill import Client
from jobmill.core.announcing import WorkerCard
from jobmill.core.job import Progress
from jobmill.core.tallies import BUCKETS, MINUTE_MS, ErrorGroup, Tally, bucket
from jobmill.core.values import Claim, Report

TEXT = "<script>alert(1)</script>"


@dataclass
class Shop:
    """The jobs that tests open."""

    failed: str
    waiting: str
    succeeded: str
    running: str
    recurring: str
    flow: str
    large_flow: str
    #: A job that waits for a slot of its lane.
    in_lane: str


def _histogram(ms: int, count: int) -> tuple[int, ...]:
    buckets = [0] * BUCKETS
    buckets[bucket(ms)] = count
    return tuple(buckets)


async def open_shop(jobs: Client) -> Shop:
    """Fill an empty store."""

    @jobs.handler(queue="mail", max_attempts=3, backoff="1ms")
    async def send_order_confirmation(context: jobmill.Context, to: str, order_id: int) -> str:
        context.log(f"connecting to the mail relay for {to}")
        if context.job.attempt == 3:
            raise TimeoutError("no answer in 10 s")
        raise ConnectionError("mail relay refused the connection (421 too many connections)")

    @jobs.handler(queue="payments")
    async def charge_card(context: jobmill.Context, order_id: int, card: str) -> dict[str, object]:
        context.log("charged")
        return {"charged": True, "amount": "129.90", "reference": 2**60}

    @jobs.handler(queue="images", max_attempts=5, backoff="1ms")
    async def resize(context: jobmill.Context, source: str) -> None:
        context.log(f"reading {source} (48.2 MB)")
        context.log("slow: 4.1 of 48.2 MB after 5 s", "warning")
        context.log("no answer in 10 s", "error")
        raise TimeoutError("no answer in 10 s")

    large_flow = await _import_catalog(jobs, 250)
    failed = await send_order_confirmation.enqueue(to="ada@example.org", order_id=48213)
    for order in range(4):
        await send_order_confirmation.enqueue(to=f"customer-{order}@example.org", order_id=order)
    succeeded = await charge_card.enqueue(order_id=48213, card="4111")
    flow = await _import_catalog(jobs, 6)
    while True:
        done = await jobs.tick(limit=50)
        if not done.claimed:
            break
        await asyncio.sleep(0.002)
    waiting = await jobs.enqueue("deliver_webhook", {"url": "https://example.org/hook", "note": TEXT}, queue="webhooks")
    for n in range(60):
        await jobs.enqueue("deliver_webhook", {"n": n}, queue="webhooks", tenant="acme" if n % 2 else "globex")
    await jobs.enqueue("remind_abandoned_cart", {"cart": 7}, queue="mail", delay="2h")
    held = await jobs.enqueue("export_orders", {"year": 2026}, queue="exports")
    await jobs.hold(held.id, note="wait for the auditors", who="ada")
    cancelled = await jobs.enqueue("export_orders", {"year": 2025}, queue="exports")
    await jobs.cancel(cancelled.id, who="ada")
    recurring = await jobs.enqueue("nightly_report", cron="0 8 * * 1-5", timezone="Europe/Berlin", key="nightly")
    await jobs.enqueue("heartbeat", every="15m", key="heartbeat")
    await jobs.pin(recurring.id, cron="30 9 * * *", timezone="Europe/Berlin", who="on-call")
    await jobs.queue("invoices").pause(who="ada", note="bank api down", until="2h")
    await jobs.queue("images").running_limit(1)
    await jobs.mark("v1.4.2")
    running = await resize.enqueue(source="uploads/linen-shirt.tif")
    await jobs.tick()
    await _claim(jobs)
    await _announce(jobs)
    return Shop(
        failed.id, waiting.id, succeeded.id, running.id, recurring.id, flow, large_flow, await _fill_lanes(jobs)
    )


async def _import_catalog(jobs: Client, pictures: int) -> str:
    """A flow: a feed is split, pictures and texts are made of its parts, and all of it is published; its id."""

    async def part(context: jobmill.Context, number: int = 0) -> int:
        await context.step("open the feed", int, 7)
        if number == 3:
            raise ValueError("cannot identify image file wool-scarf-grey-back.tif")
        return number

    names = ("fetch_supplier_feed", "split_catalog", "resize_product_image", "translate_texts")
    fetch, split, resize, translate = (
        jobs.handlers.get(name) or jobs.handler(name=name, queue="images", max_attempts=1)(part) for name in names
    )
    feed = fetch.draft()
    parts = split.draft().after(feed)
    images = [resize.draft(number=number).after(parts) for number in range(pictures)]
    texts = [translate.draft(number=0).after(parts), translate.draft(number=1).after(parts)]
    publish = jobs.draft("publish_range", {"range": "spring 2027"}).after(*images, *texts, even_if_failed=True)
    index = jobs.draft("index_products_of_the_whole_range").after(*texts)
    return (await jobs.draft("announce_range").after(publish, index).enqueue()).flow.id


async def _fill_lanes(jobs: Client) -> str:
    """A queue with a lane for each customer; the id of a job that waits for a slot."""
    queue = jobs.queue("newsletters")
    await queue.lanes(running=2, rate=(30, "1m"))
    await queue.lane("bigco", running=10, strict=True, who="ada")
    customers = {"acme": 4, "bigco": 14, "globex": 60, TEXT: 3, "long-name-" * 25: 3, "Ärzte ohne Grenzen e.V.": 1}
    drafts = [
        jobs.draft("send_newsletter", {"issue": issue}, queue=queue.name, lane=lane, delay="2h" if issue == 1 else "0s")
        for lane, count in customers.items()
        for issue in range(count)
    ]
    enqueued = await jobs.enqueue_many(drafts)
    claim = Claim(
        queues=(queue.name,), names={"send_newsletter": 5}, n=5, lease_ms=3_600_000, worker="worker-1", token="n"
    )
    await jobs.store.exchange([], claim)
    await queue.lane("acme").pause(who="ada", note="they asked us to stop until Monday")
    await queue.lane("initech", rate=(1, "1h"))
    await jobs.enqueue_many([jobs.draft("send_newsletter", queue=queue.name, lane="initech") for _ in range(2)])
    return enqueued[25].id


async def _claim(jobs: Client) -> None:
    """A worker has the job for a second attempt, and has reported."""
    claim = Claim(queues=("images",), names={"resize": 1}, n=1, lease_ms=3_600_000, worker="worker-1", token="t")
    while True:
        found = (await jobs.store.exchange([], claim)).claimed
        if found:
            break
        await asyncio.sleep(0.002)
    progress, lines = (
        Progress(40, "2 of 5 sizes"),
        ("reading uploads/linen-shirt.tif (48.2 MB)", "2 of 5 sizes written"),
    )
    await jobs.store.report([Report(lease=found[0].lease, progress=progress, lines=lines, attempt=2)])


async def _announce(jobs: Client) -> None:
    """Two workers, and what they did in the last hour."""
    now_ms = jobs.store.now()
    start_ms = now_ms - now_ms % MINUTE_MS
    group = ErrorGroup(
        fingerprint="f1",
        error_type="ConnectionError",
        location="shop/mail/relay.py:41 in send",
        count=3,
        last_job_id="none",
        last_ms=now_ms - 12_000,
    )
    tallies = [
        Tally(
            start_ms=start_ms - minute * MINUTE_MS,
            queue=queue,
            name=name,
            claimed=100 + minute % 7 * 9,
            succeeded=100 + minute % 7 * 9 - errors,
            errored=errors,
            failed=errors // 2,
            run_ms=100 * 84,
            wait_ms=100 * 20,
            run_buckets=_histogram(84, 100),
            wait_buckets=_histogram(20, 100),
            error_groups=(group,) if errors else (),
        )
        for minute in range(60)
        for queue, name, errors in (
            ("mail", "send_order_confirmation", 3 if minute < 25 else 0),
            ("images", "resize", 0),
            ("payments", "charge_card", 0),
        )
    ]
    tallies += [
        Tally(
            start_ms=start_ms - hour * 3_600_000,
            queue="default",
            name=name,
            succeeded=int(hour % 9 > 0),
            failed=int(hour % 9 == 0),
        )
        for hour in range(1, 30)
        for name in ("nightly_report", "heartbeat")
    ]
    for number, version in ((1, jobmill.__version__), (2, "0.0.9")):
        card = WorkerCard(
            id=f"card-{number}",
            name=f"worker-{number}",
            host="web-1",
            pid=4000 + number,
            version=version,
            python="3.11.9",
            started_ms=now_ms - 3 * 86_400_000,
            queues=("mail", "images", "payments", "default"),
            names=("send_order_confirmation", "resize", "charge_card", "nightly_report", "heartbeat"),
            concurrency=20,
            running=number - 1,
            stopping=number == 2,
            loops={"exchanger 1": 12, "heartbeat": 90},
            announcement=1,
        )
        await jobs.store.announce(card, tallies if number == 1 else [])
