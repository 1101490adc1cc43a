"""Sentry: the real SDK with a transport that records, on a real worker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk

import jobmill
from jobmill import Client, InvalidValue
from jobmill.core.recurrence import Recurrence
from jobmill.sentry import JobmillIntegration, _schedule, monitor_slug
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until
from tests.kit.processes import launched
from tests.sentry import handlers
from tests.sentry.recorded import DSN, Recorded

Init = Callable[..., Recorded]
ROOT = Path(__file__).parents[2]
log = logging.getLogger("shop")
#: Not as one text: events have the lines of source around an error.
CARD = "-".join(("4111", "1111"))


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


@pytest.fixture
def init() -> Iterator[Init]:
    """Start the SDK for some clients, with its usual integrations."""

    def start(*clients: Client, sdk: dict[str, Any] | None = None, **options: Any) -> Recorded:
        transport = Recorded()
        integration = JobmillIntegration(*clients, **options)
        given = {"traces_sample_rate": 1.0, "release": "1", "auto_enabling_integrations": False, **(sdk or {})}
        sentry_sdk.init(dsn=DSN, transport=transport, integrations=[integration], **given)
        return transport

    yield start
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


async def failed(enqueued: jobmill.Enqueued[Any]) -> None:
    with pytest.raises(jobmill.JobFailed):
        await enqueued.result(timeout=20)


def last_exception(event: dict[str, Any]) -> tuple[str, str]:
    value = event["exception"]["values"][-1]
    return value["type"], value["value"]


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_only_the_final_error_is_reported_and_only_once(jobs: Client, init: Init, kind: str) -> None:
    sent = init(jobs)

    def no_money(card: str) -> None:
        raise ValueError("no money")

    async def no_money_async(card: str) -> None:
        raise ValueError("no money")

    options: Any = {"name": "charge", "queue": "bills", "max_attempts": 3, "backoff": "1ms"}
    charge = jobs.handler(**options)(no_money_async if kind == "async" else no_money)
    async with Worker(jobs, name="till-1"):
        enqueued = await charge.enqueue(card=CARD)
        await failed(enqueued)
    (event,) = sent.errors
    assert last_exception(event) == ("ValueError", "no money")
    assert event["tags"] == {"queue": "bills", "name": "charge", "attempt": "3"}
    assert event["contexts"]["job"] == {
        "id": enqueued.id,
        "name": "charge",
        "queue": "bills",
        "attempt": 3,
        "fence": 3,
        "worker": "till-1",
        "payload": {"card": "[Filtered]"},
    }
    frames = event["exception"]["values"][0]["stacktrace"]["frames"]
    assert [frame["function"] for frame in frames] == [no_money.__name__ if kind == "thread" else "no_money_async"]
    assert event["exception"]["values"][0]["mechanism"] == {"type": "jobmill", "handled": False}
    # The handler's own variables are sent by the SDK, which has an option for it. Jobmill sends the value nowhere else.
    del frames[0]["vars"]
    assert CARD not in json.dumps(event)


async def test_every_attempt_is_reported_if_asked_for(jobs: Client, init: Init) -> None:
    sent = init(jobs, capture="every")

    @jobs.handler(max_attempts=2, backoff="1ms")
    async def charge() -> None:
        raise ValueError("no money")

    async with Worker(jobs):
        await failed(await charge.enqueue())
    assert [event["tags"]["attempt"] for event in sent.errors] == ["1", "2"]


async def test_success_snooze_and_retry_report_nothing(jobs: Client, init: Init) -> None:
    sent = init(jobs)
    runs: list[int] = []

    @jobs.handler(max_attempts=2, backoff="1ms")
    async def flaky(context: jobmill.Context) -> None:
        runs.append(context.attempt)
        if len(runs) == 1:
            raise jobmill.Snooze("1ms")
        if len(runs) == 2:
            raise ValueError

    async with Worker(jobs):
        await (await flaky.enqueue()).result(timeout=10)
    assert runs == [1, 1, 2]
    assert sent.errors == []


async def test_a_timeout(jobs: Client, init: Init) -> None:
    sent = init(jobs)

    @jobs.handler(max_attempts=1, timeout="10ms")
    async def slow() -> None:
        await asyncio.sleep(60)

    async with Worker(jobs):
        await failed(await slow.enqueue())
    (event,) = sent.errors
    assert last_exception(event) == ("TimeoutError", "timed out after 10ms")


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("how", ["capture_exception", "log.exception"])
async def test_an_error_that_the_handler_reports_itself_is_reported_once(
    jobs: Client, init: Init, kind: str, how: str
) -> None:
    sent = init(jobs)

    def report() -> None:
        try:
            raise ValueError("no money")
        except ValueError:
            if how == "log.exception":
                log.exception("cannot charge")
            else:
                sentry_sdk.capture_exception()
            raise

    async def report_async() -> None:
        report()

    charge = jobs.handler(name="charge", max_attempts=1)(report_async if kind == "async" else report)
    async with Worker(jobs):
        await failed(await charge.enqueue())
    (event,) = sent.errors
    assert last_exception(event) == ("ValueError", "no money")
    assert event["tags"]["name"] == "charge"


async def test_an_isolated_process(init: Init) -> None:
    sent = init(handlers.jobs)
    async with Worker(handlers.jobs):
        await failed(await handlers.prints.enqueue(page=7))
        await failed(await handlers.dies.enqueue())
    raised, died = sent.errors
    (value,) = raised["exception"]["values"]
    assert (value["type"], value["value"], value["module"]) == (
        "OutOfPaper",
        "tray 2\nand tray 3",
        "tests.sentry.handlers",
    )
    frame = value["stacktrace"]["frames"][-1]
    assert (frame["function"], frame["abs_path"], frame["in_app"]) == ("prints", handlers.__file__, True)
    assert frame["lineno"] > 0
    assert raised["contexts"]["job"]["payload"] == {"page": "[Filtered]"}
    assert last_exception(died) == ("RuntimeError", "process ended by SIGABRT")


async def test_a_failure_without_a_run(init: Init) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)
    sent = init(jobs)

    @jobs.handler
    async def fine() -> None: ...

    def refuse(settlements: Any, claim: Any) -> BaseException | None:
        return RuntimeError("no room") if any(one.outcome == "succeeded" for one in settlements) else None

    store.faults["exchange"] = refuse
    async with Worker(jobs):
        enqueued = await fine.enqueue()
        await failed(enqueued)
        await until(lambda: sent.errors)
    reported = [event for event in sent.errors if event.get("logger") != "jobmill"]
    assert [last_exception(event)[0] for event in reported] == ["JobFailed"]
    assert reported[0]["tags"] == {"queue": "default", "name": "fine", "attempt": "1"}
    assert reported[0]["contexts"]["job"]["id"] == enqueued.id


async def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    recorded = tmp_path / "sent"
    url = f"sqlite:///{tmp_path}/jobs.db"
    environment = {
        **os.environ,
        "JOBMILL_URL": url,
        "SENTRY_RECORDED": str(recorded),
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
    }
    command = [sys.executable, "-m", "jobmill", "worker", "tests.sentry.handlers:jobs", "--lease", "1s"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            launched(None, signal.SIGKILL, command),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async with jobmill.connect(url) as jobs:
        enqueued = await jobs.enqueue("hangs")
        first = start()
        try:
            assert first.stdout is not None
            assert await asyncio.to_thread(first.stdout.readline) == "hanging\n"
        finally:
            first.kill()
            first.communicate()
        second = start()
        try:
            await failed(enqueued)
        finally:
            second.terminate()
            await asyncio.to_thread(second.communicate)
    assert second.returncode == 0
    (sent,) = [json.loads(line) for line in recorded.read_text().splitlines()]
    assert sent[1] == "event"
    assert last_exception(sent[2])[0] == "JobFailed"
    assert last_exception(sent[2])[1].startswith("crashed 1 times (max_crashes=1)")
    assert sent[2]["tags"]["name"] == "hangs"


async def test_other_errors_in_the_log_of_jobmill_are_still_reported(jobs: Client, init: Init) -> None:
    sent = init(jobs)
    others = jobmill.connect("memory://")

    @jobs.handler
    async def never() -> None: ...

    @jobs.on("idle")
    def broken(worker: Worker) -> None:
        raise ValueError("in a hook")

    @others.handler(max_attempts=1)
    async def charge() -> None:
        raise ValueError("of another client")

    async with Worker(jobs), Worker(others):
        await failed(await charge.enqueue())
        await until(lambda: len(sent.errors) == 2)
    assert sorted(last_exception(event)[1] for event in sent.errors) == ["in a hook", "of another client"]


async def test_nothing_is_reported_without_the_integration(jobs: Client, init: Init) -> None:
    init(jobs)
    sent = init(jobmill.connect("memory://"))

    @jobs.handler(max_attempts=1)
    async def charge() -> None:
        sentry_sdk.set_tag("mine", "1")
        raise ValueError

    # The tag stays in this scope: without the integration, runs have none of their own.
    with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name="request"):
        async with Worker(jobs):
            await failed(await charge.enqueue())
    assert [event.get("logger") for event in sent.errors] == ["jobmill"]
    (transaction,) = sent.of_type("transaction")
    assert transaction["spans"] == []


async def test_runs_do_not_share_a_scope(jobs: Client, init: Init) -> None:
    sent = init(jobs)
    barrier = asyncio.Barrier(2)

    @jobs.handler(max_attempts=1)
    async def tagged(value: str) -> None:
        sentry_sdk.set_tag("value", value)
        sentry_sdk.add_breadcrumb(message=value)
        await barrier.wait()
        raise ValueError(value)

    async with Worker(jobs):
        for one in [await tagged.enqueue(value) for value in ("a", "b")]:
            await failed(one)
    assert len(sent.errors) == 2
    for event in sent.errors:
        value = last_exception(event)[1]
        assert event["tags"]["value"] == value
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == [value]


async def test_the_last_events_are_sent_when_a_worker_stops(jobs: Client, init: Init) -> None:
    sent = init(jobs)
    async with Worker(jobs):
        assert sent.flushed == []
    assert sent.flushed == [2.0]


def test_only_this_module_imports_the_sdk() -> None:
    code = """
import sys
sys.modules["sentry_sdk"] = None  # how Python knows that there is no such module
import jobmill.cli, jobmill.client.client, jobmill.testing, jobmill.worker.isolate.child, jobmill.worker.worker
try:
    import jobmill.sentry
except jobmill.MissingExtra as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": f"{ROOT}/src"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "jobmill.sentry needs sentry-sdk: pip install 'jobmill[sentry]'\n"


def test_wrong_options(jobs: Client) -> None:
    with pytest.raises(InvalidValue, match="clients: expected one client"):
        JobmillIntegration()
    with pytest.raises(InvalidValue, match="capture: expected one of final, every"):
        JobmillIntegration(jobs, capture="all")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- spans


async def test_a_run_is_a_transaction(jobs: Client, init: Init) -> None:
    sent = init(jobs)

    @jobs.handler(max_attempts=2, backoff="1ms", queue="bills")
    async def charge(context: jobmill.Context, card: str) -> None:
        with sentry_sdk.start_span(op="db", name="query"):
            pass
        if context.attempt == 1:
            raise ValueError

    async with Worker(jobs):
        enqueued = await charge.enqueue(card="4111")
        await enqueued.result(timeout=10)
    first, second = sent.of_type("transaction")
    assert (first["transaction"], first["transaction_info"]) == ("charge", {"source": "task"})
    assert [one["contexts"]["trace"]["status"] for one in (first, second)] == ["internal_error", "ok"]
    trace = second["contexts"]["trace"]
    assert (trace["op"], trace["origin"]) == ("queue.process", "auto.queue.jobmill")
    assert 0 <= trace["data"].pop("messaging.message.receive.latency") < 10_000
    assert {key: value for key, value in trace["data"].items() if key.startswith("messaging")} == {
        "messaging.system": "jobmill",
        "messaging.message.id": enqueued.id,
        "messaging.destination.name": "bills",
        "messaging.message.body.size": len('{"card":"4111"}'),
        "messaging.message.retry.count": 1,
    }
    assert [span["op"] for span in second["spans"]] == ["db"]
    assert second["contexts"]["job"]["payload"] == {"card": "[Filtered]"}


async def test_an_error_belongs_to_the_trace_of_its_run(jobs: Client, init: Init) -> None:
    sent = init(jobs)

    @jobs.handler(max_attempts=1)
    def charge() -> None:
        raise ValueError

    enqueued = [await charge.enqueue() for _ in range(2)]
    with sentry_sdk.start_transaction(name="program"):
        async with Worker(jobs):
            for one in enqueued:
                await failed(one)
    errors, runs = sent.errors, sent.of_type("transaction")[:2]
    assert [one["contexts"]["trace"]["trace_id"] for one in errors] == [
        one["contexts"]["trace"]["trace_id"] for one in runs
    ]
    # The trace of the program that started the worker does not grow with every job.
    assert len({one["contexts"]["trace"]["trace_id"] for one in sent.of_type("transaction")}) == 3


async def test_enqueueing_is_a_span(jobs: Client, init: Init) -> None:
    sent = init(jobs)

    @jobs.handler
    async def mail(to: str) -> None: ...

    await mail.enqueue(to="ada")  # outside of a transaction
    with sentry_sdk.start_transaction(name="request"):
        enqueued = await mail.enqueue(to="ada")
        await jobs.enqueue_many([mail.draft(to="lin"), jobs.draft("other", queue="bills")])
    (request,) = sent.of_type("transaction")
    one, many = request["spans"]
    assert (one["op"], one["description"], one["origin"]) == ("queue.publish", "mail", "auto.queue.jobmill")
    assert {key: value for key, value in one["data"].items() if key.startswith("messaging")} == {
        "messaging.system": "jobmill",
        "messaging.message.id": enqueued.id,
        "messaging.destination.name": "default",
        "messaging.message.body.size": len('{"to":"ada"}'),
    }
    assert many["description"] == "enqueue_many"
    assert "messaging.destination.name" not in many["data"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_run_continues_the_trace_of_its_enqueue(jobs: Client, init: Init, streams: bool) -> None:
    sent = init(jobs, sdk={"trace_lifecycle": "stream"} if streams else None)

    @jobs.handler(max_attempts=2, backoff="1ms")
    async def mail(context: jobmill.Context) -> None:
        if context.attempt == 1:
            raise ValueError

    with sentry_sdk.traces.start_span("request") if streams else sentry_sdk.start_transaction(name="request"):
        enqueued = await mail.options(headers={"mine": "1"}).enqueue()
    job = await jobs.get(enqueued.id)
    assert job.headers.keys() == {"mine", "sentry-trace", "baggage"}
    async with Worker(jobs):
        await enqueued.result(timeout=10)
    trace_id, span_id, _ = job.headers["sentry-trace"].split("-")
    if streams:
        sentry_sdk.get_client().flush()
        spans = [span for item in sent.of_type("span") for span in item["items"]]
        publish = next(
            span for span in spans if span["attributes"].get("sentry.op", {}).get("value") == "queue.publish"
        )
        runs = [span for span in spans if span["attributes"].get("sentry.op", {}).get("value") == "queue.process"]
    else:
        request, *transactions = sent.of_type("transaction")
        (publish,) = request["spans"]
        runs = [transaction["contexts"]["trace"] for transaction in transactions]
    assert publish["span_id"] == span_id
    assert [(run["trace_id"], run["parent_span_id"]) for run in runs] == [(trace_id, span_id)] * 2


async def test_headers_are_for_jobs_that_have_room_and_run_once(jobs: Client, init: Init) -> None:
    init(jobs)
    large = {"mine": "x" * 4_000}
    with sentry_sdk.start_transaction(name="request"):
        full = await jobs.enqueue("mail", headers=large)
        recurring = await jobs.enqueue("mail", every="1h", key="hourly")
    outside = await jobs.enqueue("mail")
    found = [(await jobs.get(one.id)).headers for one in (full, recurring, outside)]
    assert found == [large, {}, {}]


async def test_an_enqueue_that_fails(init: Init) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)
    sent = init(jobs)
    store.faults["enqueue"] = jobmill.StoreUnavailable("away")
    with sentry_sdk.start_transaction(name="request"), pytest.raises(jobmill.StoreUnavailable):
        await jobs.enqueue("mail")
    (request,) = sent.of_type("transaction")
    assert [span["status"] for span in request["spans"]] == ["internal_error"]


async def test_streamed_spans(jobs: Client, init: Init) -> None:
    sent = init(jobs, sdk={"trace_lifecycle": "stream"})

    @jobs.handler(max_attempts=1)
    async def mail(to: str) -> None:
        raise ValueError

    with sentry_sdk.traces.start_span("request"):
        enqueued = await mail.enqueue(to="ada")
    async with Worker(jobs):
        await failed(enqueued)
    sentry_sdk.get_client().flush()
    assert len(sent.errors) == 1
    spans = [span for item in sent.of_type("span") for span in item["items"]]
    request, publish, process = (
        next(span for span in spans if span["attributes"].get("sentry.op", {}).get("value") == op)
        for op in (None, "queue.publish", "queue.process")
    )
    assert publish["parent_span_id"] == request["span_id"]
    assert (process["name"], process["status"], process["parent_span_id"]) == ("mail", "error", publish["span_id"])
    for span in (publish, process):
        assert span["attributes"]["messaging.message.id"]["value"] == enqueued.id
        assert span["attributes"]["sentry.origin"]["value"] == "auto.queue.jobmill"


# ---------------------------------------------------------------------------------------------------- monitors


async def test_a_recurring_job_checks_in(jobs: Client, init: Init) -> None:
    sent = init(jobs, monitor_config={"checkin_margin": 5})
    attempts: list[int] = []

    @jobs.handler(every="1h", max_attempts=2, backoff="1ms", timeout="90s")
    async def digest(context: jobmill.Context) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise ValueError

    @jobs.handler(cron="0 9 * * mon", timezone="Europe/Berlin", key="Monday mail", max_attempts=1)
    async def weekly() -> None:
        raise ValueError

    async with Worker(jobs):
        await until(lambda: attempts == [1, 2])
        await jobs.reschedule(name="weekly", delay="1ms")
        check_ins = await until(lambda: len(found := sent.of_type("check_in")) == 4 and found)
    by_slug = {slug: [one for one in check_ins if one["monitor_slug"] == slug] for slug in ("digest", weekly_slug())}
    begun, ended = by_slug["digest"]
    assert (begun["status"], ended["status"]) == ("in_progress", "ok")
    assert begun["check_in_id"] == ended["check_in_id"]
    assert ended["monitor_config"] == {
        "schedule": {"type": "interval", "value": 1, "unit": "hour"},
        "max_runtime": 2,
        "checkin_margin": 5,
    }
    begun, ended = by_slug[weekly_slug()]
    assert (begun["status"], ended["status"]) == ("in_progress", "error")
    assert 0 <= ended["duration"] < 10
    assert ended["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 9 * * mon"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 5,
    }
    assert len(sent.errors) == 1


def weekly_slug() -> str:
    return monitor_slug("weekly", "Monday mail")


async def test_no_check_ins(jobs: Client, init: Init) -> None:
    sent = init(jobs, monitors=False)
    done = asyncio.Event()

    @jobs.handler(every="1h")
    async def digest() -> None:
        done.set()

    async with Worker(jobs):
        await done.wait()
        await until(lambda: sent.of_type("transaction"))
    assert sent.of_type("check_in") == []


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [
        ({"cron": "*/5 * * * *"}, {"type": "crontab", "value": "*/5 * * * *"}),
        ({"cron": "@daily"}, {"type": "crontab", "value": "0 0 * * *"}),
        ({"cron": "0 */5 * * * *"}, {"type": "crontab", "value": "*/5 * * * *"}),
        ({"cron": "*/5 * * * * *"}, None),
        ({"cron": "@every 90m"}, {"type": "interval", "value": 90, "unit": "minute"}),
        ({"every_ms": 90_000}, None),
        ({"every_ms": 1_000}, None),
        ({"every_ms": 60_000}, {"type": "interval", "value": 1, "unit": "minute"}),
        ({"every_ms": 14 * 86_400_000}, {"type": "interval", "value": 2, "unit": "week"}),
    ],
)
def test_schedules_of_monitors(rule: dict[str, Any], schedule: dict[str, Any] | None) -> None:
    made = _schedule(Recurrence(key="k", **rule))
    assert (made if made is None else made["schedule"]) == schedule


def test_the_zone_of_a_cron_may_be_in_its_text() -> None:
    made = _schedule(Recurrence(key="k", cron="TZ=Asia/Tokyo 0 9 * * *"))
    assert made == {"schedule": {"type": "crontab", "value": "0 9 * * *"}, "timezone": "Asia/Tokyo"}


def test_slugs_of_monitors() -> None:
    assert monitor_slug("digest", "digest") == "digest"
    assert monitor_slug("digest", "monday") == "digest-monday"
    slugs = [monitor_slug("mail", key) for key in ("a b", "a:b", "A-B", "é" * 200, "x" * 200, "x" * 201)]
    assert len(set(slugs)) == len(slugs)
    assert all(len(slug) <= 50 and slug.strip("abcdefghijklmnopqrstuvwxyz0123456789_-") == "" for slug in slugs)
