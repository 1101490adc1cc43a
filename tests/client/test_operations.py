"""What a client does for operations: depths, tallies, hold and release, pins, pauses with a reason, the audit log."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jobmill
from jobmill.core.audit import AuditEntry
from jobmill.core.tallies import Tally
from jobmill.core.values import Filter, Pause
from jobmill.errors import InvalidValue, JobNotFound
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def jobs(clock: ManualClock) -> jobmill.Client:
    return jobmill.connect(store=MemoryStore(clock=clock), who="deploy script")


async def _audit(jobs: jobmill.Client, **about: Any) -> list[AuditEntry]:
    return (await jobs.audit_log(**about)).entries


# ---------------------------------------------------------------------------------------------------- headers


async def test_headers_travel_with_a_job(jobs: jobmill.Client) -> None:
    seen: list[dict[str, str]] = []

    @jobs.handler
    async def send(context: jobmill.Context, to: str) -> None:
        seen.append(context.job.headers)

    await send.options(headers={"traceparent": "00-1"}).enqueue(to="ada")
    await jobs.enqueue("send", {"to": "bob"}, headers={"x": "ö"}, max_attempts=3)
    await send.enqueue(to="eve")
    await jobs.tick()
    assert seen == [{"traceparent": "00-1"}, {"x": "ö"}, {}]
    shown = (await jobs.find(payload={"to": "bob"})).jobs[0].to_dict()
    assert (shown["headers"], shown["options"]) == ({"x": "ö"}, {"max_attempts": 3})


@pytest.mark.parametrize(
    "headers",
    ["text", ["a"], {"a": 1}, {1: "a"}, {"": "a"}, {"a": "\x00"}, {"a": "\ud800"}, {"a": "x" * 4096}],
    ids=repr,
)
async def test_headers_that_cannot_be_kept_are_refused(jobs: jobmill.Client, headers: Any) -> None:
    with pytest.raises(InvalidValue, match="headers"):
        await jobs.enqueue("send", headers=headers)


async def test_headers_of_four_kibibytes_are_kept(jobs: jobmill.Client) -> None:
    enqueued = await jobs.enqueue("send", headers={"a": "x" * 4095})
    assert (await jobs.get(enqueued.id)).headers == {"a": "x" * 4095}


async def test_a_due_time_that_means_held_is_refused(jobs: jobmill.Client) -> None:
    last = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
    enqueued = await jobs.enqueue("send", due_at=last)
    assert (await jobs.get(enqueued.id)).due_at == last
    for call in (
        jobs.enqueue("send", due_at=datetime(9999, 1, 1, tzinfo=UTC)),
        jobs.reschedule(enqueued.id, due_at=datetime(9999, 1, 1, tzinfo=UTC)),
    ):
        with pytest.raises(InvalidValue, match="before the year 9999"):
            await call


# ---------------------------------------------------------------------------------------------------- reading


async def test_depths_of_all_queues_or_of_some(jobs: jobmill.Client) -> None:
    await jobs.enqueue("send", queue="a")
    await jobs.enqueue("send", queue="b", delay="1h")
    assert [(one.queue, one.due, one.later) for one in await jobs.depths()] == [("a", 1, 0), ("b", 0, 1)]
    assert [one.queue for one in await jobs.depths("b")] == ["b"]
    with pytest.raises(InvalidValue, match="queue"):
        await jobs.depths("not a queue")


async def test_tallies_of_a_time_in_steps(jobs: jobmill.Client, clock: ManualClock) -> None:
    minute = clock() // 60_000 * 60_000
    await jobs.store.announce(card(), [Tally(start_ms=minute, queue="mail", name="send", claimed=2)])
    assert [one.claimed for one in await jobs.tallies()] == [2]
    assert [one.step_ms for one in await jobs.tallies("8h", step="10m", queue="mail")] == [600_000]
    since = datetime.fromtimestamp(minute / 1000, UTC)
    assert len(await jobs.tallies(since)) == 1
    assert await jobs.tallies(since - timedelta(hours=2), since) == []
    for step in ("90s", "1s", 0):
        with pytest.raises(InvalidValue, match="step"):
            await jobs.tallies(step=step)


async def test_filters_by_content(jobs: jobmill.Client) -> None:
    await jobs.enqueue("mail.send", {"to": "ada", "n": 1}, id="a")
    await jobs.enqueue("mail.open", {"to": "bob"}, id="b")
    await jobs.enqueue("report", every="1h", key="k")
    assert [job.id for job in (await jobs.find(payload={"to": "ada"})).jobs] == ["a"]
    assert [job.id for job in (await jobs.find(name_prefix="mail.", payload={"n": 1})).jobs] == ["a"]
    assert [job.name for job in (await jobs.find(recurring=True)).jobs] == ["report"]
    wrong: Any
    for wrong in ({}, "text", {"a": [1]}, {"a": {}}, {1: 2}):
        with pytest.raises(InvalidValue, match="payload"):
            await jobs.find(payload=wrong)
    with pytest.raises(InvalidValue, match="held"):
        await jobs.find(held="yes")  # type: ignore[arg-type]


async def test_explain_needs_a_job(jobs: jobmill.Client) -> None:
    with pytest.raises(JobNotFound):
        await jobs.explain("unknown")


# ---------------------------------------------------------------------------------------------------- acts


async def test_hold_and_release_are_in_the_audit_log(jobs: jobmill.Client) -> None:
    await jobs.enqueue("send", id="a", tenant="acme")
    await jobs.enqueue("send", id="b", tenant="acme")
    assert (await jobs.hold("a", note="wrong letter", who="ada")).ids == ["a"]
    held = (await jobs.get("a")).held
    assert held is not None
    assert (held.who, held.note) == ("ada", "wrong letter")
    assert sorted((await jobs.hold(tenant="acme")).ids) == ["a", "b"]
    assert (await jobs.release(["a", "b"], who="bob")).ids == ["a", "b"]
    released, by_filter, by_id = await _audit(jobs)
    assert (by_id.what, by_id.who, by_id.note, by_id.ids, by_id.count) == ("hold", "ada", "wrong letter", ("a",), 1)
    assert (by_filter.who, by_filter.filter, by_filter.count) == ("deploy script", {"tenant": "acme"}, 2)
    assert (released.what, released.who, released.ids) == ("release", "bob", ("a", "b"))
    assert await _audit(jobs, job_id="b") == [released, by_filter]


async def test_every_change_is_in_the_audit_log(jobs: jobmill.Client) -> None:
    await jobs.enqueue("send", id="a", delay="1h")
    await jobs.reschedule("a", delay="2h")
    await jobs.reprioritize("a", priority=5)
    await jobs.cancel("a")
    await jobs.requeue("a")
    await jobs.remove("a")
    await jobs.mark("v1.4.2")
    whats = [entry.what for entry in await _audit(jobs)]
    assert whats == ["mark", "remove", "requeue", "cancel", "reprioritize", "reschedule"]
    assert (await _audit(jobs, what="mark"))[0].note == "v1.4.2"


async def test_what_changed_nothing_is_not_in_the_audit_log(jobs: jobmill.Client) -> None:
    await jobs.cancel("unknown")
    await jobs.cancel(queue="nothing")
    assert await jobs.purge() == 0
    assert await jobs.stop_workers("unknown") == []
    assert await _audit(jobs) == []


async def test_an_entry_names_the_first_hundred_jobs(jobs: jobmill.Client) -> None:
    await jobs.enqueue_many([jobs.draft("send") for _ in range(250)])
    await jobs.cancel(queue="default")
    (entry,) = await _audit(jobs)
    assert (len(entry.ids), entry.count, entry.queue) == (100, 250, "default")


async def test_an_act_stands_if_the_audit_log_cannot_be_written(
    jobs: jobmill.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: Any) -> None:
        raise OSError("disk full")

    await jobs.enqueue("send", id="a")
    monkeypatch.setattr(jobs.store, "audit", broken)
    with caplog.at_level(logging.WARNING, "jobmill"):
        assert (await jobs.cancel("a")).ids == ["a"]
    assert "audit log" in caplog.text
    assert "disk full" in caplog.text


async def test_who_and_note_must_be_texts(jobs: jobmill.Client) -> None:
    await jobs.enqueue("send", id="a")
    for wrong in ("", "a\nb", 5, "x" * 2_000):
        with pytest.raises(InvalidValue, match="who"):
            await jobs.cancel("a", who=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="note"):
            await jobs.hold("a", note=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="who"):
            jobmill.connect(store=jobs.store, who=wrong)  # type: ignore[arg-type]
    assert (await jobs.get("a")).state == "waiting"
    assert await _audit(jobs) == []


async def test_a_pause_with_a_reason_and_an_end(jobs: jobmill.Client, clock: ManualClock) -> None:
    queue = jobs.queue("mail")
    settings = await queue.pause(note="api down", until="10m", who="ada")
    now_ms = clock()
    assert settings.pause == Pause(who="ada", note="api down", since_ms=now_ms, until_ms=now_ms + 600_000)
    until = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(hours=1)
    settings = await queue.pause(until=until)
    assert settings.pause == Pause(who="deploy script", since_ms=now_ms, until_ms=now_ms + 3_600_000)
    assert (await queue.resume(who="bob")).pause is None
    await queue.rate_limit(5, "1m")
    await queue.running_limit(None)
    entries = await _audit(jobs, queue="mail")
    assert [(one.what, one.who, one.note) for one in entries] == [
        ("running_limit", "deploy script", "none"),
        ("rate_limit", "deploy script", "5 per 1m"),
        ("resume", "bob", None),
        ("pause", "deploy script", None),
        ("pause", "ada", "api down"),
    ]


async def test_a_pinned_rule_stays_when_code_states_its_own(jobs: jobmill.Client) -> None:
    first = await jobs.enqueue("report", every="1h", key="k")
    assert (await jobs.pin(first.id, cron="0 5 * * *", timezone="Europe/Berlin")).ids == [first.id]
    again = await jobs.enqueue("report", every="2h", key="k")
    assert (again.status, again.id) == ("pinned", first.id)
    rule = (await jobs.get(first.id)).recurrence
    assert rule is not None
    assert (rule.cron, rule.timezone, rule.pinned) == ("0 5 * * *", "Europe/Berlin", True)
    await jobs.release_pin(first.id, who="ada")
    rule = (await jobs.get(first.id)).recurrence
    assert rule is not None
    assert (rule.every_ms, rule.pinned) == (7_200_000, False)
    assert [entry.what for entry in await _audit(jobs)] == ["release_pin", "pin"]
    with pytest.raises(InvalidValue, match="cron"):
        await jobs.pin(first.id, cron="0 5 * * *", every="1h")
    with pytest.raises(InvalidValue, match="cron"):
        await jobs.pin(first.id)


def test_sync_methods(jobs: jobmill.Client) -> None:
    jobs.sync.enqueue("send", id="a")
    jobs.sync.hold("a", note="why")
    assert [reason.code for reason in jobs.sync.explain("a")] == ["held_by_person", "no_worker"]
    assert jobs.sync.depths()[0].held == 1
    jobs.sync.release("a")
    jobs.sync.mark("done")
    assert len(jobs.sync.audit_log().entries) == 3
    assert jobs.sync.workers() == []
    assert jobs.sync.tallies() == []
    assert jobs.sync.count(held=False)[0].count == 1
    assert Filter(held=True) != Filter()
    jobs.sync.close()
