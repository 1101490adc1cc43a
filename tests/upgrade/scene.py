"""The jobs that are frozen: the same on every store, in every state that a job can have, at fixed times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Unpack

from msgspec import structs

import jobmill
from jobmill import Event, exponential, fixed, harmonyk
from jobmill.core.job import Keep, Progress
from jobmill.core.lifecycle import Errored, Outcome, Snoozed, Succeeded, begin, policy, settle
from jobmill.core.usage import Usage
from jobmill.core.values import Claim, Claimed, Lease, NewJob, QueueChange, RateLimit, Report, Settlement
from jobmill.handlers.options import EnqueueOptions
from jobmill.store import RecordsUsage, Store
from jobmill.testing import ManualClock

#: A Monday, one minute before 7 o'clock in Berlin.
START_MS = 1_750_049_940_000
HOUR_MS = 3_600_000
#: Frozen leases that are to have ended lasted this long.
BRIEF_MS = 1_000

LONG_TEXT = "Käse, 日本語, 🎉. " * 200


class Scene:
    """A store that is being filled; `ids` and `leases` are by label."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.jobs = jobmill.connect(store=store)
        self.ids: dict[str, str] = {}
        self.leases: dict[str, Lease] = {}

    async def add(self, label: str, name: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> None:
        """Enqueue a job, to be known by this label."""
        enqueued = await self.jobs.enqueue(name, payload, **options)
        assert enqueued.created, f"{label}: {enqueued}"
        self.ids[label] = enqueued.id

    async def claim(self, label: str, lease_ms: int = HOUR_MS, worker: str = "worker-1") -> Claimed:
        """Claim this job, which must be the next of its name."""
        job = await self.jobs.get(self.ids[label])
        claim = Claim(
            queues=(job.queue,),
            names={job.name: 1},
            n=1,
            lease_ms=lease_ms,
            worker=worker,
            token=f"{len(self.leases) + 1:032x}",
        )
        (claimed,) = (await self.store.exchange([], claim)).claimed
        assert isinstance(claimed, Claimed), claimed
        assert claimed.job.id == job.id, f"{label}: claimed {claimed.job}"
        self.leases[label + "+" * claimed.job.claims] = self.leases[label] = claimed.lease
        return claimed

    async def end(self, claimed: Claimed, outcome: Outcome | Settlement) -> None:
        """Settle it, by the rules that a worker follows."""
        decided = outcome
        if not isinstance(decided, Settlement):
            decided = settle(claimed, decided, policy(claimed.job.options), self.clock())
        answer = await self.store.exchange([decided], None)
        assert answer.settled == ["done"]

    async def run(self, label: str, outcome: Outcome) -> None:
        """Claim it, take a second, settle it."""
        claimed = await self.claim(label)
        self.clock.advance(1)
        await self.end(claimed, outcome)


def raised(error: str, line: int = 7) -> Errored:
    """What a handler of an imaginary application raised."""
    traceback = f'Traceback (most recent call last):\n  File "shop/mail.py", line {line}, in send\n{error}\n'
    return Errored(error=error, traceback=traceback)


async def fill(scene: Scene) -> None:
    """All of it. Only the last parts leave jobs that can be claimed: until then a claim finds what it is meant to."""
    await scene.store.open()
    await _settings(scene)
    await _recurring(scene)
    await _final(scene)
    await _running(scene)
    await _limited(scene)
    await _retrying(scene)
    await _waiting(scene)
    await _waiting_with_options(scene)
    await _usage(scene)


async def _settings(scene: Scene) -> None:
    changes = {
        "mail": QueueChange(feed=True, events_max_len=200),
        "held": QueueChange(paused=True),
        "slow": QueueChange(rate_limit=RateLimit(2, HOUR_MS)),
        "narrow": QueueChange(running_limit=1),
    }
    for queue, change in changes.items():
        await scene.store.configure(queue, change)


async def _recurring(scene: Scene) -> None:
    until = datetime(2031, 1, 1, tzinfo=UTC)
    await scene.add("digest", "digest", {"für": "alle"}, cron="0 7 * * 1-5", timezone="Europe/Berlin", key="weekdays")
    await scene.add("nightly", "nightly", {}, every="30s", key="nightly", until=until, queue="büro", tenant="acme")
    await scene.add("pulse", "pulse", {"n": 1}, every="10m", key="pulse", max_attempts=1)
    again = await scene.jobs.enqueue("pulse", {"n": 2}, every="5m", key="pulse", max_attempts=1)
    assert again.status == "updated"
    await scene.run("nightly", Succeeded(b'{"rows":3}'))
    await scene.run("pulse", Succeeded(b'"ok"'))
    scene.clock.advance(60)
    await scene.run("digest", Succeeded(b"null"))
    scene.clock.advance(300)
    await scene.run("pulse", raised("RuntimeError: kein Puls"))
    await scene.claim("nightly", worker="worker-2")


async def _final(scene: Scene) -> None:
    payload = {"to": "zoë@example.com", "text": "Grüße, 世界 🎉 \u0000", "numbers": [1, 2.5, -3, 2**53 - 1], "no": None}
    await scene.add("succeeded", "send", payload, queue="mail", tenant="acme", unique_key="once", priority=2)
    claimed = await scene.claim("succeeded")
    for value, line in ((50, "erste Zeile"), (100, "second line 🎉")):
        scene.clock.advance(0.25)
        report = Report(lease=claimed.lease, progress=Progress(value, "läuft"), lines=(line, f"{value} %"))
        assert await scene.store.report([report]) == []
    await scene.end(claimed, Succeeded('{"sent":true,"größe":1.5}'.encode()))
    await scene.store.publish(
        [
            Event(
                type="opened", job_id=claimed.job.id, name="send", queue="mail", at_ms=scene.clock(), data={"by": "zoë"}
            )
        ]
    )
    for number in (1, 2):
        await scene.add(f"kept_{number}", "export", [number, "zwei", None], keep_succeeded=5)
        await scene.run(f"kept_{number}", Succeeded(b"[1,2]"))
    for label, key in (("failed", "order-8"), ("failed_with_taken_key", "order-9")):
        await scene.add(label, "send", {"to": ""}, queue="mail", unique_key=key, max_attempts=2, backoff=fixed("5s"))
        await scene.run(label, raised("ValueError: kein Empfänger"))
        scene.clock.advance(5)
        await scene.run(label, raised("ValueError: still kein Empfänger", 9))
    await scene.add("crashed", "fragile", {}, max_crashes=1)
    await scene.claim("crashed", BRIEF_MS)
    scene.clock.advance(10)
    claimed = await scene.claim("crashed")
    decided = begin(claimed, policy(claimed.job.options), scene.clock())
    assert decided is not None
    await scene.end(claimed, decided)
    await scene.add("cancelled_waiting", "send", {"to": "bob"}, queue="mail", delay="1h", tenant="acme")
    await scene.add("cancelled_running", "scan", {"folder": 1}, keep_failed="90d")
    await scene.claim("cancelled_running")
    ids = [scene.ids["cancelled_waiting"], scene.ids["cancelled_running"]]
    assert (await scene.jobs.cancel(ids)).refused == {}


async def _running(scene: Scene) -> None:
    await scene.add("ended_lease", "fetch", {"url": "https://example.com/ä"}, max_attempts=5)
    await scene.claim("ended_lease", BRIEF_MS, worker="worker-dead")
    await scene.add("running_after_crash", "scan", {"folder": 2})
    await scene.claim("running_after_crash", BRIEF_MS, worker="worker-dead")
    scene.clock.advance(10)
    await scene.claim("running_after_crash", worker="worker-2")
    await scene.add("running", "render", {"page": 4}, tenant="acme", unique_key="page-4", priority=7)
    claimed = await scene.claim("running")
    report = Report(lease=claimed.lease, progress=Progress(40.5), lines=("halfway",))
    assert await scene.store.report([report]) == []


async def _limited(scene: Scene) -> None:
    for number in (1, 2):
        await scene.add(f"slow_{number}", "crawl", {"n": number}, queue="slow")
        await scene.run(f"slow_{number}", Succeeded(b"true"))
    await scene.add("slow_waiting", "crawl", {"n": 3}, queue="slow")
    await scene.add("narrow_running", "print", "one page", queue="narrow")
    await scene.claim("narrow_running")
    await scene.add("narrow_waiting", "print", "another page", queue="narrow")
    await scene.add("held_waiting", "print", "a third page", queue="held")


async def _retrying(scene: Scene) -> None:
    await scene.add("retrying", "send", {"to": "eve"}, queue="mail", backoff=exponential("2h", cap="1d"), tenant="acme")
    await scene.run("retrying", raised("TimeoutError: no answer"))
    await scene.add("retrying_due", "retry", {"n": 1}, backoff="1s", max_attempts=4)
    await scene.run("retrying_due", raised("OSError: first"))
    scene.clock.advance(2)
    await scene.run("retrying_due", raised("OSError: second", 8))
    scene.clock.advance(2)
    await scene.add("snoozed", "later", {})
    await scene.run("snoozed", Snoozed(2 * HOUR_MS))
    await scene.add("requeued", "redo", {}, max_attempts=1)
    await scene.run("requeued", raised("KeyError: 'id'"))
    assert (await scene.jobs.requeue(scene.ids["requeued"])).refused == {}


async def _waiting(scene: Scene) -> None:
    await scene.add("due_low", "greet", {"who": "low"}, priority=10)
    await scene.add("due", "greet", {"who": "Jürgen"})
    await scene.add("due_middle", "greet", {"who": "middle"}, priority=5)
    await scene.add("delayed", "greet", {"who": "later"}, delay="1h")
    await scene.add("far", "greet", {"who": "far"}, due_at=datetime(2040, 2, 29, 12, tzinfo=UTC), priority=1)
    await scene.add("own_id", "invoice", {"number": 1}, id="invoice-2025-ä-0001")
    await scene.add("rescheduled", "moved", {}, delay="3h")
    await scene.jobs.reschedule(scene.ids["rescheduled"], delay="20m")
    await scene.jobs.reprioritize(scene.ids["rescheduled"], priority=33)
    await scene.add("taken_key", "send", {"to": "bob"}, queue="mail", unique_key="order-9", delay="1h")
    await scene.add("deduped", "index", {"folder": 7, "deep": True}, tenant="acme", dedupe=True)
    await scene.add("deduped_by_hash", "index", {"text": LONG_TEXT}, dedupe=True)
    await scene.add("list", "odd", [1, "zwei", None, {"drei": []}])
    await scene.add("text", "odd", "just text")
    await scene.add("number", "odd", -0.5)
    null = NewJob(id=scene.store.new_id(), name="odd", queue="default", payload_json=b"null")
    assert [receipt.status for receipt in await scene.store.enqueue([null])] == ["created"]
    scene.ids["null"] = null.id


async def _waiting_with_options(scene: Scene) -> None:
    await scene.add(
        "all_options",
        "optioned",
        {},
        queue="büro",
        priority=2_097_151,
        max_attempts=7,
        max_crashes=2,
        backoff=exponential("250ms", cap="10m", jitter=0.25),
        timeout="90s",
        keep_succeeded=Keep(last=3, age_ms=HOUR_MS),
        keep_failed=True,
        tenant="größe & co",
    )
    await scene.add("no_timeout", "optioned", {}, timeout=None, keep_succeeded=False)
    repository = harmonyk.Repository(scene.jobs)
    scene.ids["harmonyk"] = await repository.enqueue("hygiene", "acme", {"folder": 3}, dedupe=True)


def usage() -> list[Usage]:
    """Records of three runs."""
    first = Usage(
        job_id="j-1",
        name="send",
        queue="mail",
        tenant="acme",
        attempt=1,
        outcome="succeeded",
        duration_ms=500.25,
        started_ms=START_MS,
        finished_ms=START_MS + 500,
        worker="worker-1",
    )
    lost = structs.replace(first, job_id="j-3", tenant="größe & co", outcome="lost", queue="büro", duration_ms=0.0)
    return [first, structs.replace(first, job_id="j-2", outcome="errored", attempt=2, tenant="global"), lost]


async def _usage(scene: Scene) -> None:
    if isinstance(scene.store, RecordsUsage):
        await scene.store.record_usage(usage())


# ---------------------------------------------------------------------------------------------------- jobs table

TABLE = "public.jobs"
ORG = "0b5c3b9e-6a55-4a9e-9a53-0d3c3c6c1c11"
_ROWS = ("row_succeeded", "row_failed", "row_cancelled", "row_ended_lease", "row_retrying", "row_due", "row_later")


def row_id(label: str) -> str:
    """The id of a row of the jobs table."""
    return f"00000000-0000-4000-8000-{_ROWS.index(label) + 1:012d}"


async def fill_table(scene: Scene, sql: Any) -> None:
    """Rows of a jobs table in every status; `sql` is a connection of asyncpg."""
    for label in _ROWS[:5]:
        await _insert(scene, sql, label)
        if label == "row_cancelled":
            await sql.execute(
                f"UPDATE {TABLE} SET status = 'failed', last_error = 'bezahlt' WHERE id = $1", row_id(label)
            )
        elif label == "row_ended_lease":
            await scene.claim(label, BRIEF_MS, worker="worker-dead")
        else:
            outcomes: dict[str, Sequence[Outcome]] = {
                "row_succeeded": [Succeeded(b'"fine"')],
                "row_failed": [Errored(error="ValueError: no such order", final=True)],
                "row_retrying": [raised("OSError: first")],
            }
            for outcome in outcomes[label]:
                await scene.run(label, outcome)
    scene.clock.advance(10)
    await _insert(scene, sql, "row_due")
    await _insert(scene, sql, "row_later", 7_200)


async def _insert(scene: Scene, sql: Any, label: str, delay_s: int = 0) -> None:
    scene.ids[label] = row_id(label)
    due = datetime.fromtimestamp(scene.clock() // 1_000 + delay_s, UTC)
    await sql.execute(
        f"INSERT INTO {TABLE} (id, type, org_id, payload, next_run_at) VALUES ($1, $2, $3, $4, $5)",
        row_id(label),
        f"{label}_scan",
        ORG,
        '{"order": 12, "für": "Zoë"}',
        due,
    )
