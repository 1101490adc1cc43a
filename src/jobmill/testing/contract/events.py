"""`events` and `publish`: the feed of a queue, written in the same step as the changes that it records."""

from __future__ import annotations

from jobmill.core.changes import Cancel, Remove
from jobmill.core.events import Event
from jobmill.core.job import Keep, Progress
from jobmill.core.lifecycle import DEFAULT_POLICY, Policy, begin
from jobmill.core.values import QueueChange, Report
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    QUEUE,
    claim,
    claim_one,
    enqueue_one,
    fail,
    new,
    put,
    put_one,
    release,
    retry,
    second,
    settle,
    snooze,
    started,
    succeed,
    turns,
)

FEED = QueueChange(feed=True)


async def events_of(store: Store, *types: str) -> list[Event]:
    """The events of these types, or of all types if none is given."""
    return [event for event in await store.events(QUEUE) if not types or event.type in types]


def custom(number: int, queue: str = QUEUE) -> Event:
    """An event that a user publishes."""
    return Event(type="note", job_id="j", name="n", queue=queue, at_ms=number, attempt=3, data={"number": number})


class EventsContract:
    """The feed."""

    async def test_the_feed_is_off_by_default(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, succeed(claimed))
        assert await harness.store.events(QUEUE) == []

    async def test_a_queue_without_events_has_an_empty_feed(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        assert await harness.store.events(QUEUE) == []
        assert await harness.store.events("never-was") == []

    async def test_a_feed_that_was_turned_off_records_no_more(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        first = await put_one(harness.store)
        await harness.store.configure(QUEUE, QueueChange(feed=False))
        await put_one(harness.store)
        assert {event.job_id for event in await events_of(harness.store)} <= {first}

    async def test_a_feed_has_only_events_of_its_queue(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await harness.store.configure("other", FEED)
        await put(harness.store, new(), new(queue="other"))
        (event,) = await harness.store.events("other")
        assert event.queue == "other"

    # ------------------------------------------------------------------------------------------------ events

    async def test_enqueueing_is_an_event(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        id = await put_one(harness.store)
        (event,) = await events_of(harness.store)
        assert (event.type, event.job_id, event.name, event.queue) == ("enqueued", id, "send", QUEUE)
        assert (event.at_ms, event.attempt) == (harness.store.now(), 1)
        assert event.id

    async def test_duplicates_and_repeated_ids_are_no_events(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await put_one(harness.store, new("one", key="k"))
        await harness.store.enqueue([new("one"), new("two", key="k")])
        assert len(await events_of(harness.store)) == 1

    async def test_claiming_is_an_event_with_the_worker(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await put_one(harness.store)
        await harness.advance(2)
        claimed = await claim_one(harness.store, worker="host-1")
        (event,) = await events_of(harness.store, "claimed")
        assert (event.job_id, event.at_ms, event.attempt) == (claimed.job.id, harness.store.now(), 1)
        assert event.data == {"worker": "host-1"}

    async def test_a_lost_lease_is_an_event_when_the_job_is_claimed_again(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store, worker="dead")
        await harness.advance(LEASE_MS / 1_000)
        await claim_one(harness.store, worker="alive")
        tail = (await events_of(harness.store))[-2:]
        assert [(event.type, event.job_id) for event in tail] == [
            ("lease_lost", claimed.job.id),
            ("claimed", claimed.job.id),
        ]
        assert tail[1].data == {"worker": "alive"}

    async def test_progress_is_an_event(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(42.5, "on it"), lines=("x",))])
        (event,) = await events_of(harness.store, "progress")
        assert (event.job_id, event.data) == (claimed.job.id, {"value": 42.5, "message": "on it"})

    async def test_success_is_an_event_with_the_result(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        await settle(harness.store, succeed(claimed, {"sent": [1]}))
        event = (await events_of(harness.store))[-1]
        assert (event.type, event.job_id, event.data) == ("succeeded", claimed.job.id, {"result": {"sent": [1]}})

    async def test_a_retried_error_is_an_event_with_its_delay(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        await settle(harness.store, retry(claimed, 1_500, "boom"))
        errored, retrying = (await events_of(harness.store))[-2:]
        assert (errored.type, errored.attempt) == ("errored", 1)
        assert errored.data == {"error": "boom", "traceback": "Traceback of boom"}
        assert (retrying.type, retrying.data) == ("retrying", {"delay_ms": 1_500})

    async def test_events_have_the_number_of_the_attempt(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await settle(harness.store, retry(await started(harness.store), 0))
        await settle(harness.store, fail(await claim_one(harness.store)))
        tail = [(event.type, event.attempt) for event in await events_of(harness.store)][-3:]
        assert tail == [("claimed", 2), ("errored", 2), ("failed", 2)]

    async def test_a_failure_is_an_event_with_its_error(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await settle(harness.store, fail(await started(harness.store), "boom"))
        errored, failed = (await events_of(harness.store))[-2:]
        assert (errored.type, failed.type, failed.data) == ("errored", "failed", {"error": "boom"})

    async def test_a_failure_by_crashes_is_no_error_of_the_handler(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        for _ in range(3):
            await harness.advance(LEASE_MS / 1_000)
            claimed = await claim_one(harness.store)
        settlement = begin(claimed, DEFAULT_POLICY, harness.store.now())
        assert settlement is not None
        await settle(harness.store, settlement)
        assert await events_of(harness.store, "errored") == []
        assert len(await events_of(harness.store, "failed")) == 1

    async def test_snoozing_and_releasing_are_no_events(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await settle(harness.store, snooze(await started(harness.store), 0))
        await settle(harness.store, release(await claim_one(harness.store)))
        assert [event.type for event in await events_of(harness.store)] == ["enqueued", "claimed", "claimed"]

    async def test_cancelling_is_an_event(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        id = await put_one(harness.store)
        await harness.advance(1)
        await harness.store.change([id], Cancel())
        event = (await events_of(harness.store))[-1]
        assert (event.type, event.job_id, event.name, event.at_ms) == ("cancelled", id, "send", harness.store.now())

    async def test_removing_is_an_event(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        id = await put_one(harness.store)
        await harness.store.change([id], Remove())
        event = (await events_of(harness.store))[-1]
        assert (event.type, event.job_id) == ("removed", id)

    async def test_a_success_that_is_not_kept_is_an_event_too(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        await settle(harness.store, succeed(claimed, "good", rules=Policy(keep_succeeded=Keep(last=0))))
        (event,) = await events_of(harness.store, "succeeded")
        assert (event.job_id, event.data) == (claimed.job.id, {"result": "good"})

    async def test_lost_settlements_and_refused_changes_are_no_events(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        await harness.store.change([claimed.job.id], Cancel())
        count = len(await events_of(harness.store))
        await settle(harness.store, succeed(claimed))
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(1))])
        await harness.store.change([claimed.job.id, "never-was"], Cancel())
        assert len(await events_of(harness.store)) == count

    async def test_the_feed_has_the_events_of_a_job_in_order(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(50))])
        await settle(harness.store, succeed(claimed))
        await harness.store.change([claimed.job.id], Remove())
        types = [event.type for event in await events_of(harness.store)]
        assert types == ["enqueued", "claimed", "progress", "succeeded", "removed"]

    # ------------------------------------------------------------------------------------------------ reading

    async def test_reading_continues_after_an_event(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        ids = await put(harness.store, *[new() for _ in range(5)])
        seen: list[str] = []
        after: str | None = None
        for _ in turns():
            page = await harness.store.events(QUEUE, after, 2)
            if not page:
                break
            assert len(page) <= 2
            seen += [event.job_id for event in page]
            after = page[-1].id
        assert seen == ids

    async def test_reading_after_the_last_event_returns_later_events(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await put_one(harness.store)
        last = (await events_of(harness.store))[-1].id
        assert await harness.store.events(QUEUE, last) == []
        later = await put_one(harness.store)
        assert [event.job_id for event in await harness.store.events(QUEUE, last)] == [later]

    async def test_event_ids_are_all_different(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await put(harness.store, *[new() for _ in range(20)])
        assert len({event.id for event in await events_of(harness.store)}) == 20

    async def test_the_feed_keeps_its_maximum_length(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(feed=True, events_max_len=3))
        ids = await put(harness.store, *[new() for _ in range(10)])
        assert [event.job_id for event in await events_of(harness.store)] == ids[-3:]

    async def test_reading_after_a_dropped_event_continues_with_the_oldest(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(feed=True, events_max_len=3))
        await put_one(harness.store)
        first = (await events_of(harness.store))[0].id
        ids = await put(harness.store, *[new() for _ in range(10)])
        assert [event.job_id for event in await harness.store.events(QUEUE, first)] == ids[-3:]

    async def test_a_busy_feed_does_not_shorten_another(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(feed=True, events_max_len=5))
        await harness.store.configure("busy", QueueChange(feed=True, events_max_len=5))
        await put_one(harness.store)
        await put(harness.store, *[new(queue="busy") for _ in range(20)])
        assert len(await events_of(harness.store)) == 1

    async def test_another_connection_reads_the_feed(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        async with second(harness) as other:
            await put_one(harness.store)
            await put_one(other)
            assert len(await events_of(other)) == len(await events_of(harness.store)) == 2

    # ------------------------------------------------------------------------------------------------ publishing

    async def test_published_events_are_in_the_feed(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await harness.store.publish([custom(1), custom(2)])
        first, last = await events_of(harness.store)
        assert (first.type, first.job_id, first.name, first.queue) == ("note", "j", "n", QUEUE)
        assert (first.at_ms, first.attempt, first.data, last.data) == (1, 3, {"number": 1}, {"number": 2})
        assert first.id != last.id

    async def test_published_events_are_stored_only_where_the_feed_is_on(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await harness.store.publish([custom(1, "off"), custom(2)])
        assert [event.data for event in await events_of(harness.store)] == [{"number": 2}]
        assert await harness.store.events("off") == []

    async def test_publishing_no_events_does_nothing(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        await harness.store.publish([])
        assert await events_of(harness.store) == []

    async def test_a_feed_does_not_change_the_results(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, FEED)
        id = await put_one(harness.store)
        assert (await enqueue_one(harness.store, new(id))).status == "exists"
        assert [one.job.id for one in await claim(harness.store)] == [id]
