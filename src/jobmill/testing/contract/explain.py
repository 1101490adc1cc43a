"""`explain`: why a job does not run. One test for each code, over the facts that the store gives."""

from __future__ import annotations

import msgspec
from msgspec import structs

from jobmill.client.client import Client
from jobmill.core.changes import Hold
from jobmill.core.durations import to_datetime
from jobmill.core.flows import After
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Policy, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.queue_settings import LaneChange, LaneRule
from jobmill.core.reasons import CODES, Code, Reason
from jobmill.core.recurrence import Recurrence
from jobmill.core.tallies import Tally
from jobmill.core.values import Pause, QueueChange, RateLimit, after
from jobmill.testing.contract.announce import card
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.lanes import laned
from jobmill.testing.contract.support import (
    NAME,
    QUEUE,
    claim,
    claim_one,
    end,
    fail,
    in_state,
    new,
    put,
    put_one,
    second,
    settle,
    started,
)


async def explained(harness: Harness, id: str, *codes: Code) -> list[Reason]:
    """The reasons for a job, which must have these codes."""
    reasons = await Client(harness.store).explain(id)
    assert [reason.code for reason in reasons] == list(codes)
    assert all(reason.text for reason in reasons)
    return reasons


class ExplainContract:
    """Each reason with its evidence."""

    def test_every_code_has_a_test(self) -> None:
        tests = " ".join(name for name in dir(self) if name.startswith("test_code_"))
        assert [code for code in CODES if f"test_code_{code}" not in tests] == []

    async def test_code_finished(self, harness: Harness) -> None:
        id = await in_state(harness.store, "failed")
        (reason,) = await explained(harness, id, "finished")
        assert (reason.evidence["state"], reason.evidence["error"]) == ("failed", "no luck")
        assert "requeue" in str(reason.remedy)

    async def test_code_running(self, harness: Harness) -> None:
        await harness.store.announce(card(name="w1"), [])
        claimed = await started(harness.store, worker="w1")
        await harness.advance(5)
        (reason,) = await explained(harness, claimed.job.id, "running")
        assert (reason.evidence["worker"], reason.evidence["running_ms"]) == ("w1", 5_000)

    async def test_code_worker_lost(self, harness: Harness) -> None:
        await harness.store.announce(card(name="w1"), [])
        async with second(harness) as worker:
            claimed = await started(worker, worker="w1", lease_ms=60_000)
        until_ms = harness.store.now() + 60_000
        await harness.advance(31)
        (reason,) = await explained(harness, claimed.job.id, "worker_lost")
        assert (reason.evidence["worker"], reason.evidence["lease_until_ms"]) == ("w1", until_ms)
        assert "takes it over at" in reason.text

    async def test_code_worker_lost_although_it_announces_itself(self, harness: Harness) -> None:
        await harness.store.announce(card(name="w1"), [])
        claimed = await started(harness.store, worker="w1", lease_ms=5_000)
        until_ms = harness.store.now() + 5_000
        await harness.advance(4)
        (reason,) = await explained(harness, claimed.job.id, "running")
        assert reason.evidence["lease_until_ms"] == until_ms
        assert reason.text.endswith(", in 1s")
        await harness.advance(2)
        (reason,) = await explained(harness, claimed.job.id, "worker_lost")
        assert "may take it over" in reason.text
        assert reason.evidence["lease_until_ms"] <= harness.store.now()

    async def test_code_foreign_owner(self, harness: Harness) -> None:
        await harness.store.announce(card(name="node", system="other"), [])
        claimed = await started(harness.store, worker="node")
        (reason,) = await explained(harness, claimed.job.id, "foreign_owner")
        assert reason.evidence["systems"] == ["other"]

    async def test_code_held_by_person(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.announce(card(), [])
        await harness.store.change([id], Hold(who="ada", note="wrong letter"))
        (reason,) = await explained(harness, id, "held_by_person")
        assert reason.evidence == {"who": "ada", "note": "wrong letter"}
        assert f"release {id}" in str(reason.remedy)

    async def test_code_held(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.announce(card(), [])
        await harness.store.change([id], Hold(by="rule"))
        (reason,) = await explained(harness, id, "held")
        assert reason.evidence == {"by": ["rule"]}

    async def test_code_held_by_jobs(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        first, then = await put(harness.store, new("x"), structs.replace(new("then"), after=(After("x"),), flow="f"))
        (reason,) = await explained(harness, then, "held_by_jobs")
        pending = {"id": first, "name": NAME, "state": "waiting", "queue": QUEUE}
        assert reason.evidence == {"dependencies": [pending]}
        assert f"jobs why {first}" in str(reason.remedy)

    async def test_code_dependency_failed(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await put(harness.store, new("first"), structs.replace(new("then"), after=(After("first"),), flow="f"))
        await settle(harness.store, fail(await claim_one(harness.store), "no luck"))
        reason, *_ = await Client(harness.store).explain("then")
        assert (reason.code, reason.evidence["why"]) == ("dependency_failed", "dependency first failed: no luck")
        assert "flows retry f" in str(reason.remedy)

    async def test_code_waits_for_signal(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        claimed = await started(harness.store)
        waits = decide(claimed, Suspended(waits_for="approved", due=after(60_000)), DEFAULT_POLICY, 0)
        await settle(harness.store, waits)
        (reason,) = await explained(harness, claimed.job.id, "waits_for_signal")
        assert reason.evidence["signal"] == "approved"

    async def test_code_unreadable(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        id = await put_one(harness.store, new(payload={"a": 1}))
        await harness.corrupt(id)
        reasons = await Client(harness.store).explain(id)
        assert reasons[0].code == "unreadable"

    async def test_code_not_due(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        id = await put_one(harness.store, new(due=after(60_000)))
        (reason,) = await explained(harness, id, "not_due")
        assert "1m" in reason.text
        rule = Recurrence(key="k", every_ms=60_000)
        recurring = await put_one(harness.store, new(key="k", recurrence=rule, due=after(5_000)))
        (reason,) = await explained(harness, recurring, "not_due")
        assert "occurrence" in reason.text

    async def test_code_retry_backoff(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        claimed = await started(harness.store)
        errored = Errored(error="MailError: no luck", error_type="app.MailError", delay_ms=30_000)
        await end(harness.store, claimed, errored, Policy(max_attempts=5))
        (reason,) = await explained(harness, claimed.job.id, "retry_backoff")
        assert (reason.evidence["attempt"], reason.evidence["error_type"]) == (2, "app.MailError")

    async def test_code_queue_paused(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        id = await put_one(harness.store)
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        await explained(harness, id, "queue_paused")
        since_ms = harness.store.now()
        pause = Pause(who="ada", note="api down", since_ms=since_ms, until_ms=since_ms + 60_000)
        await harness.store.configure(QUEUE, QueueChange(paused=True, pause=pause))
        (reason,) = await explained(harness, id, "queue_paused")
        assert (reason.evidence["who"], reason.evidence["until_ms"]) == ("ada", since_ms + 60_000)
        assert "ada" in reason.text
        await harness.advance(25)
        await harness.store.announce(card(announcement=2), [])
        await harness.advance(25)
        await harness.store.announce(card(announcement=3), [])
        await harness.advance(25)
        await explained(harness, id, "ready")

    async def test_code_no_worker(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        (reason,) = await explained(harness, id, "no_worker")
        assert "jobmill worker" in str(reason.remedy)

    async def test_code_no_worker_for_queue(self, harness: Harness) -> None:
        await harness.store.announce(card(queues=("reports",)), [])
        id = await put_one(harness.store)
        (reason,) = await explained(harness, id, "no_worker_for_queue")
        assert reason.evidence["queues"] == ["reports"]

    async def test_code_no_worker_for_name(self, harness: Harness) -> None:
        await harness.store.announce(card(names=("sent", "other")), [])
        id = await put_one(harness.store)
        (reason,) = await explained(harness, id, "no_worker_for_name")
        assert reason.evidence["nearest"] == "sent"

    async def test_code_workers_stopping(self, harness: Harness) -> None:
        await harness.store.announce(card(stopping=True), [])
        await harness.store.announce(card("w2", names=("other",)), [])
        id = await put_one(harness.store)
        (reason,) = await explained(harness, id, "workers_stopping")
        assert reason.evidence["workers"] == ["w1-name"]

    async def test_code_queue_running_limit(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        running, id = await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        assert len(await claim(harness.store)) == 1
        (reason,) = await explained(harness, id, "queue_running_limit")
        assert (reason.evidence["running"], reason.evidence["limit"]) == (1, 1)
        assert reason.evidence["longest"] == [running]

    async def test_code_queue_rate_limit(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 20_000)))
        _, id = await put(harness.store, new(), new())
        assert len(await claim(harness.store)) == 1
        (reason,) = await explained(harness, id, "queue_rate_limit")
        assert (reason.evidence["count"], reason.evidence["per_ms"]) == (1, 20_000)

    async def test_code_workers_full(self, harness: Harness) -> None:
        await harness.store.announce(card(concurrency=1, running=1), [])
        await harness.store.announce(card("w2", names=("other",)), [])
        running, id = await put(harness.store, new(), new())
        assert (await claim_one(harness.store)).job.id == running
        (reason,) = await explained(harness, id, "workers_full")
        assert (reason.evidence["running"], reason.evidence["concurrency"]) == (1, 1)
        assert [one["id"] for one in reason.evidence["longest"]] == [running]

    async def test_code_store_clock_skew(self, harness: Harness) -> None:
        await harness.store.announce(card(clock_skew_ms=90_000), [])
        id = await put_one(harness.store)
        (reason,) = await explained(harness, id, "store_clock_skew")
        assert reason.evidence["skew_ms"] == {"w1-name": 90_000}

    async def test_code_behind(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        tally = Tally(start_ms=now_ms - now_ms % 60_000, queue=QUEUE, name=NAME, claimed=3)
        await harness.store.announce(card(), [tally])
        ids = await put(harness.store, *[new() for _ in range(4)])
        (reason,) = await explained(harness, ids[3], "behind")
        assert (reason.evidence["ahead"], reason.evidence["estimate_ms"]) == (3, 300_000)

    async def test_code_ready(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await explained(harness, await put_one(harness.store), "ready")

    async def test_code_lane_paused(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        id = await put_one(harness.store, laned())
        pause = Pause(who="ada", note="unpaid", since_ms=harness.store.now())
        await harness.store.configure_lane(QUEUE, "a", LaneChange(pause=pause))
        (reason,) = await explained(harness, id, "lane_paused")
        assert reason.evidence == {"lane": "a", "who": "ada", "note": "unpaid", "since_ms": pause.since_ms}
        assert "paused by ada since" in reason.text
        assert reason.text.endswith(": unpaid")
        assert reason.remedy == f"resume it: jobmill queues lane {QUEUE} a --resume"
        await harness.store.configure_lane(QUEUE, "a", LaneChange(pause=None))
        await explained(harness, id, "ready")

    async def test_code_lane_full(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.store.configure(QUEUE, QueueChange(lanes=LaneRule(running=2)))
        running, admitted, first, id = await put(harness.store, *[laned(lane="my lane") for _ in range(4)])
        assert (await claim_one(harness.store)).job.id == running
        (reason,) = await explained(harness, id, "lane_full")
        counts = {"limit": 2, "running": 1, "admitted": 1, "ahead": 1}
        assert reason.evidence == {"lane": "my lane", "jobs": [running, admitted], **counts}
        text = "its lane 'my lane' has used its limit of 2: 1 running, 1 admitted; 1 more before this job"
        assert reason.text == text
        assert reason.remedy == f"raise it: jobmill queues lane {QUEUE} 'my lane' --running 4"
        (reason,) = await explained(harness, first, "lane_full")
        assert reason.evidence["ahead"] == 0
        await explained(harness, admitted, "ready")

    async def test_code_lane_rate(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.store.configure(QUEUE, QueueChange(lanes=LaneRule(rate=RateLimit(1, 20_000))))
        until_ms = harness.store.now() + 20_000
        _, id = await put(harness.store, laned(), laned())
        (reason,) = await explained(harness, id, "lane_rate")
        assert reason.evidence == {
            "lane": "a",
            "until": msgspec.to_builtins(to_datetime(until_ms)),
            "count": 1,
            "per_ms": 20_000,
            "ahead": 0,
        }
        assert "(1 per 20s) is used up until" in reason.text

    async def test_code_lane_strict(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.store.configure(QUEUE, QueueChange(lanes=LaneRule(running=1, strict=True)))
        first, id = await put(harness.store, laned(), laned())
        errored = Errored(error="MailError: no luck", delay_ms=30_000)
        await end(harness.store, await claim_one(harness.store), errored, Policy(max_attempts=5))
        (reason,) = await explained(harness, id, "lane_strict")
        assert (reason.evidence["lane"], reason.evidence["job"]) == ("a", first)
        assert (reason.evidence["attempt"], reason.evidence["error"]) == (2, "MailError: no luck")
        assert "due in 30s" in reason.text
        assert f"jobs cancel {first}" in str(reason.remedy)
        await explained(harness, first, "retry_backoff")

    async def test_code_lane_blocked_by_name(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(lanes=LaneRule(running=1)))
        first, id = await put(harness.store, structs.replace(laned(), name="old"), laned())
        await explained(harness, id, "lane_full", "no_worker")
        await harness.store.announce(card(), [])
        (reason,) = await explained(harness, id, "lane_blocked_by_name")
        assert reason.evidence == {"lane": "a", "job": first, "name": "old", "names": [NAME]}
        assert f"jobs remove {first}" in str(reason.remedy)
        await explained(harness, first, "no_worker_for_name")
        # A worker of another program may have the handler: it does not say.
        await harness.store.announce(card("w2", system="other"), [])
        await explained(harness, id, "lane_full")

    async def test_a_job_of_a_lane_that_is_due_later(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.store.configure(QUEUE, QueueChange(lanes=LaneRule(running=1)))
        _, id, errored = await put(harness.store, laned(), laned(due=after(60_000)), laned(lane="b"))
        (reason,) = await explained(harness, id, "not_due")
        assert "due in 1m" in reason.text
        other = next(one for one in await claim(harness.store) if one.job.id == errored)
        await end(harness.store, other, Errored(error="no luck", delay_ms=30_000), Policy(max_attempts=5))
        await explained(harness, errored, "retry_backoff")
        await harness.store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
        await explained(harness, id, "not_due", "lane_paused")

    async def test_a_lane_is_no_reason_while_something_else_holds_the_job(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        waits = structs.replace(laned(), after=(After("first"),), flow="f")
        _, id = await put(harness.store, new("first"), waits)
        await explained(harness, id, "held_by_jobs")
        await harness.store.change([id], Hold(who="ada"))
        await explained(harness, id, "held_by_person", "held_by_jobs")

    async def test_lanes_come_before_queues(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.store.configure(QUEUE, QueueChange(lanes=LaneRule(running=1), paused=True))
        _, id = await put(harness.store, laned(), laned())
        await explained(harness, id, "lane_full", "queue_paused")

    async def test_several_reasons_come_in_order(self, harness: Harness) -> None:
        await harness.store.announce(structs.replace(card(), queues=("reports",)), [])
        id = await put_one(harness.store, new(due=after(60_000)))
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        await explained(harness, id, "not_due", "queue_paused", "no_worker_for_queue")
