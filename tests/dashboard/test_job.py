"""The page of one job, and copies of it."""

from __future__ import annotations

import re
from urllib.parse import quote
from zoneinfo import ZoneInfo

import msgspec
import pytest

import jobmill
from jobmill import Access, Client, Dashboard
from jobmill.core.announcing import WorkerCard
from jobmill.core.durations import to_datetime
from jobmill.core.limits import MAX_ATTEMPTS
from jobmill.core.reasons import CODES
from jobmill.core.values import Claim, Report
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor


async def test_a_waiting_job_says_why_it_waits(jobs: Client, visitor: Visitor) -> None:
    enqueued = await jobs.enqueue("send", {"to": "ada"}, queue="mail")
    page = await visitor.get(f"/jobs/{enqueued.id}")
    assert page.status == 200
    assert "send waiting, due" in page.words
    assert "Why is this job not running? No worker has announced itself in the last 30 s." in page.words
    assert "Start one: jobmill worker app.py:jobs." in page.words
    data = await visitor.json(f"/jobs/{enqueued.id}")
    assert [reason["code"] for reason in data["reasons"]] == ["no_worker"]
    assert data["job"]["payload"] == {"to": "ada"}
    assert all(reason["code"] in CODES for reason in data["reasons"])


async def test_a_paused_queue_can_be_resumed_from_the_answer(jobs: Client, visitor: Visitor) -> None:
    enqueued = await jobs.enqueue("send", queue="mail")
    await jobs.queue("mail").pause(who="ada", note="api down")
    page = await visitor.get(f"/jobs/{enqueued.id}")
    assert "The queue mail is paused by ada" in page.words
    assert "Resume queue mail" in page.words


async def test_a_full_queue_names_the_jobs_that_run(jobs: Client, visitor: Visitor) -> None:
    await jobs.queue("mail").running_limit(2)
    running = [await jobs.enqueue("send", queue="mail", tenant=tenant) for tenant in ("acme", "globex")]
    claim = Claim(queues=("mail",), names={"send": 2}, n=2, lease_ms=60_000, worker="w", token="t")
    assert len((await jobs.store.exchange([], claim)).claimed) == 2
    waiting = await jobs.enqueue("send", queue="mail", tenant="acme")
    page = await visitor.get(f"/jobs/{waiting.id}")
    assert f"Running now: …{running[0].id[-8:]} …{running[1].id[-8:]}" in page.words
    # Not those of other tenants.
    acme = Visitor(Dashboard(jobs, authorize=lambda request: Access(tenants={"acme"})))
    assert f"Running now: …{running[0].id[-8:]} Raise it" in (await acme.get(f"/jobs/{waiting.id}")).words
    # Where the log lines are read instead, nothing is begun that has no end.
    assert "Running now" not in (await visitor.get(f"/jobs/{waiting.id}?log=1")).words


async def test_a_failed_job_shows_its_attempts_and_what_changed(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    @jobs.handler(max_attempts=5, backoff="1s")
    async def send(context: jobmill.Context, to: str) -> None:
        context.log(f"trying {to}")
        if context.job.attempt == 5:
            context.log("no <answer>", "error")
            raise TimeoutError("no answer")
        raise ConnectionError("relay <refused>")

    enqueued = await send.enqueue(to="ada")
    for _ in range(5):
        await jobs.tick()
        clock.advance(60)
    page = await visitor.get(f"/jobs/{enqueued.id}")
    assert "send failed" in page.words
    assert "Attempts 1 to 4 errored" in page.words
    assert "Show 4 attempts" in page.words
    assert "Attempt 5 errored" in page.words
    assert "relay &lt;refused&gt;" in page.text
    assert "What changed since the previous attempt" in page.words
    assert "Log lines the number before the text is the attempt" in page.words
    assert [f"  {n}</span>  trying ada\n" in page.text for n in (1, 5, 6)] == [True, True, False]
    assert '  5</span>  <span class="x">error    no &lt;answer&gt;</span>\n' in page.text
    (*_, last) = (await visitor.json(f"/jobs/{enqueued.id}"))["log"]
    assert (last["text"], last["attempt"], last["level"]) == ("no <answer>", 5, "error")
    assert "Attempt 5 of 5" in page.words
    assert ">Requeue</button>" in page.text


async def test_how_much_of_its_time_a_job_ran(
    jobs: Client, visitor: Visitor, dashboard: Dashboard, clock: ManualClock
) -> None:
    @jobs.handler(max_attempts=2, backoff="20s")
    async def send(context: jobmill.Context) -> None:
        clock.advance(5)
        if context.attempt == 1:
            raise ConnectionError

    async def words(id: str) -> str:
        dashboard.reads.forget()
        return (await visitor.get(f"/jobs/{id}")).words

    enqueued = await send.enqueue()
    clock.advance(30)
    assert "since it was enqueued" not in await words(enqueued.id)  # it never ran
    await jobs.tick()
    assert "Attempts 35 s since it was enqueued, 5.0 s of it running" in await words(enqueued.id)
    clock.advance(60)
    await jobs.tick()
    assert "Attempts 1 min 40 s from enqueue to end, 10 s of it running" in await words(enqueued.id)
    recurring = await jobs.enqueue("send", every="1h", key="k")
    await jobs.tick()
    assert "of it running" not in await words(recurring.id)


async def test_log_lines_of_other_programs_have_no_attempt(jobs: Client, visitor: Visitor) -> None:
    enqueued = await jobs.enqueue("send")
    claim = Claim(queues=("default",), names={"send": 1}, n=1, lease_ms=60_000, worker="w", token="t")
    (claimed,) = (await jobs.store.exchange([], claim)).claimed
    await jobs.store.report([Report(lease=claimed.lease, lines=("hello",))])
    page = await visitor.get(f"/jobs/{enqueued.id}")
    assert "is the attempt" not in page.words
    assert "</span>  hello\n" in page.text


async def test_a_succeeded_job_shows_its_result(jobs: Client, visitor: Visitor) -> None:
    @jobs.handler
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    enqueued = await add.enqueue(a=1, b=2**60)
    await jobs.tick()
    page = await visitor.get(f"/jobs/{enqueued.id}")
    assert "add succeeded" in page.words
    assert '"sum" : 1152921504606846977' in page.words
    assert (await visitor.json(f"/jobs/{enqueued.id}"))["job"]["result"] == {"sum": "1152921504606846977"}


async def test_a_job_that_is_gone_says_so(visitor: Visitor) -> None:
    page = await visitor.get("/jobs/no-such-job")
    assert (page.status, "This job is gone" in page.words) == (404, True)
    assert '<a class="button" href="/audit?job=no-such-job">Look in the audit log</a>' in page.text
    answer = await visitor.get("/jobs/no-such-job", accept="application/json")
    assert (answer.status, answer.json["status"]) == (404, 404)


async def test_ids_of_other_programs_reach_their_pages(jobs: Client, visitor: Visitor) -> None:
    for id in ("a/b", "a b?c#d", "ö", "..%2f"):
        await jobs.enqueue("send", id=id)
        assert id in (await visitor.get(f"/jobs/{quote(id, safe='')}")).words


async def test_hidden_fields_stay_hidden_and_survive_a_copy(jobs: Client) -> None:
    visitor = Visitor(Dashboard(jobs, redact=("password", "*token*")))
    payload = {"to": "ada", "password": "s3cret", "deep": [{"API_TOKEN": "t0k"}]}
    enqueued = await jobs.enqueue("send", payload, headers={"x-token": "abc"})
    page = await visitor.get(f"/jobs/{enqueued.id}")
    form = await visitor.get(f"/ask/copy?id={enqueued.id}")
    for text in (page.text, form.text, (await visitor.get(f"/jobs/{enqueued.id}?json=1")).text):
        assert "s3cret" not in text
        assert "t0k" not in text
        assert '"abc"' not in text
    assert "2 values are hidden" in page.words
    edited = '{"to": "bob", "password": "•••• hidden", "deep": [{"API_TOKEN": "•••• hidden"}]}'
    page = await visitor.act("copy", id=enqueued.id, name="send", queue="mail", payload=edited, priority="3")
    assert "Job send is enqueued." in page.words
    (copy,) = (await jobs.find(queue="mail")).jobs
    assert copy.payload == {**payload, "to": "bob"}
    assert (copy.priority, copy.headers) == (3, {"x-token": "abc"})
    (entry,) = (await jobs.audit_log()).entries
    assert (entry.what, entry.who, entry.ids, entry.note) == (
        "enqueue",
        "dashboard",
        (copy.id,),
        f"a copy of {enqueued.id}",
    )


async def test_who_may_not_see_payloads_sees_no_values(jobs: Client, clock: ManualClock) -> None:
    @jobs.handler(max_attempts=2, backoff="1h")
    async def send(context: jobmill.Context, to: str) -> None:
        context.log("to s3cret")
        raise ValueError("s3cret is wrong")

    enqueued = await send.enqueue(to="s3cret")
    await jobs.tick()
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: Access({"edit", "cancel"})))
    for query in ("", "?log=1", "?json=1"):
        page = await visitor.get(f"/jobs/{enqueued.id}{query}")
        assert page.status == 200
        assert "s3cret" not in page.text
    assert "Cancel…" in (await visitor.get(f"/jobs/{enqueued.id}")).words
    assert (await visitor.get(f"/ask/copy?id={enqueued.id}")).status == 403
    assert (await visitor.act("copy", id=enqueued.id, name="send", payload="{}")).status == 403


async def test_a_tenant_sees_its_own_jobs_only(jobs: Client) -> None:
    mine = await jobs.enqueue("send", tenant="acme")
    other = await jobs.enqueue("send", tenant="globex")
    access = Access({"edit", "enqueue", "see_payload"}, tenants={"acme"})
    visitor = Visitor(Dashboard(jobs, authorize=lambda request: access))
    assert (await visitor.get(f"/jobs/{mine.id}")).status == 200
    page = await visitor.get(f"/jobs/{other.id}")
    assert page.status == 404
    assert page.words == (await visitor.get("/jobs/none")).words
    assert "/audit" not in page.text
    assert (await visitor.get("/queues")).status == 403
    page = await visitor.act("enqueue", name="send", payload="{}", tenant="globex")
    assert page.status == 403
    assert len((await jobs.find()).jobs) == 2
    await visitor.act("enqueue", name="send", payload="{}", tenant="acme")
    assert len((await jobs.find(tenant="acme")).jobs) == 2


@pytest.mark.parametrize("payload", ["{", "nothing", '{"a": NaN}'])
async def test_a_payload_that_is_no_json_is_refused(jobs: Client, visitor: Visitor, payload: str) -> None:
    page = await visitor.act("enqueue", name="send", payload=payload, back="/queues")
    assert "payload: expected JSON" in page.words
    assert (await jobs.find()).jobs == []


async def test_times_in_reasons_are_in_the_zone_of_the_visitor(
    jobs: Client, visitor: Visitor, clock: ManualClock
) -> None:
    """The reasons are those of the command line, which writes UTC."""
    id = (await jobs.enqueue("send", delay="90m")).id
    visitor.cookies["jobmill_zone"] = "Asia/Kolkata"
    page = await visitor.get(f"/jobs/{id}")
    due = to_datetime(clock() + 90 * 60_000)
    assert f"at {due.astimezone(ZoneInfo('Asia/Kolkata')):%H:%M:%S}" in page.words
    assert re.search(r"\dT\d\d:\d\d:\d\d(\.\d+)?Z", page.words) is None
    (reason, *_) = (await visitor.json(f"/jobs/{id}"))["reasons"]
    assert re.search(r"\dT\d\d:\d\d:\d\d(\.\d+)?Z", reason["text"]) is not None


async def test_checks_that_are_fine_are_folded(jobs: Client, dashboard: Dashboard, visitor: Visitor) -> None:
    enqueued = await jobs.enqueue("send", queue="mail")
    await jobs.queue("mail").running_limit(2)
    card = WorkerCard(
        id="w",
        name="w",
        host="h",
        pid=1,
        version="1",
        python="3",
        started_ms=0,
        queues=("mail",),
        names=("send",),
        concurrency=5,
        running=1,
        announcement=1,
    )
    await jobs.store.announce(card, [])
    await jobs.queue("mail").pause()
    fine = [
        "nothing holds the job",
        f"the job is due since {to_datetime((await jobs.get(enqueued.id)).due_ms).isoformat().replace('+00:00', 'Z')}",
        "its payload can be read",
        "1 worker can run it",
        "0 of at most 2 jobs of the queue run",
        "the queue has no rate limit",
        "workers have room for 4 more jobs",
        "the clocks of the workers are right",
    ]
    path = f"/jobs/{enqueued.id}"
    assert (await visitor.json(path))["fine"] == fine
    page = await visitor.get(path)
    assert "8 other checks are fine Nothing holds the job. The job is due since" in page.words
    await jobs.queue("mail").resume()
    await jobs.hold(enqueued.id)
    dashboard.reads.forget()
    held = (await visitor.json(path))["fine"]
    assert held == ["its payload can be read", "the queue mail is not paused", *fine[3:]]
    await jobs.store.announce(msgspec.structs.replace(card, running=5, announcement=2, clock_skew_ms=5_000), [])
    await jobs.release(enqueued.id)
    await jobs.queue("mail").rate_limit(3, "1m")
    await jobs.queue("mail").running_limit(None)
    dashboard.reads.forget()
    full = await visitor.json(path)
    assert [one["code"] for one in full["reasons"]] == ["workers_full", "store_clock_skew"]
    assert full["fine"][4:] == [
        "1 worker can run it",
        "the queue has no running limit",
        "the rate limit (3 per 1m) is not used up",
    ]


async def test_a_job_without_a_limit_of_attempts(jobs: Client, visitor: Visitor) -> None:
    @jobs.handler(max_attempts=MAX_ATTEMPTS)
    async def send() -> None: ...

    enqueued = await send.enqueue()
    await jobs.tick()
    for path in ("/jobs", f"/jobs/{enqueued.id}"):
        words = (await visitor.get(path)).words
        assert "of 2" not in words
        assert "send" in words
