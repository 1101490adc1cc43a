"""`announce`, `workers`, `order_stop` and `tallies`: who works here, and what they did."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import structs

from jobmill.core.announcing import ANNOUNCED_MS, Orders, WorkerCard
from jobmill.core.tallies import BUCKETS, MINUTE_MS, TALLIES_KEPT_MS, ErrorGroup, Tally
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import NAME, QUEUE, second

HOUR_MS = 60 * MINUTE_MS


def card(id: str = "w1", announcement: int = 1, **about: Any) -> WorkerCard:
    """The card of a worker."""
    given: dict[str, Any] = {
        "name": f"{id}-name",
        "host": "host",
        "pid": 7,
        "version": "1.0",
        "python": "3.11.2",
        "started_ms": 1_000,
    }
    given |= {"queues": (QUEUE, "other"), "names": (NAME,), "concurrency": 20, "running": 3}
    return WorkerCard(**given | {"id": id, "announcement": announcement} | about)


def tally(start_ms: int, **counts: Any) -> Tally:
    """What a worker counted in the minute of this time."""
    about = {"queue": QUEUE, "name": NAME} | counts
    return Tally(start_ms=start_ms - start_ms % MINUTE_MS, **about)


def durations(*buckets: int) -> tuple[int, ...]:
    """A histogram with one duration in each of these buckets, or several in one that is named several times."""
    return tuple(buckets.count(index) for index in range(BUCKETS))


def group(fingerprint: str, count: int, last_ms: int, last_job_id: str = "job") -> ErrorGroup:
    """Errors of one kind."""
    about = {"error_type": "app.MailError", "location": "mail.py:12 in send"}
    return ErrorGroup(fingerprint=fingerprint, count=count, last_ms=last_ms, last_job_id=last_job_id, **about)


class WorkersContract:
    """Cards of workers, and orders to stop."""

    async def test_a_worker_is_there_after_its_announcement(self, harness: Harness) -> None:
        assert await harness.store.workers() == []
        given = card(stopping=True, clock_skew_ms=-12, loops={"heartbeat": 4, "exchanger 1": 0})
        assert await harness.store.announce(given, []) == Orders()
        expected = structs.replace(given, seen_ms=harness.store.now())
        assert await harness.store.workers() == [expected]
        async with second(harness) as other:
            assert await other.workers() == [expected]

    async def test_the_last_announcement_counts(self, harness: Harness) -> None:
        await harness.store.announce(card(running=3), [])
        await harness.advance(10)
        await harness.store.announce(card(announcement=2, running=0), [])
        (found,) = await harness.store.workers()
        assert (found.running, found.announcement, found.seen_ms) == (0, 2, harness.store.now())

    async def test_workers_come_by_their_start(self, harness: Harness) -> None:
        for id, started_ms in (("a", 3_000), ("b", 1_000), ("c", 2_000)):
            await harness.store.announce(card(id, started_ms=started_ms), [])
        assert [one.id for one in await harness.store.workers()] == ["b", "c", "a"]

    async def test_an_announcement_is_valid_for_thirty_seconds(self, harness: Harness) -> None:
        await harness.store.announce(card(), [])
        await harness.advance((ANNOUNCED_MS - 1) / 1000)
        assert len(await harness.store.workers()) == 1
        await harness.advance(0.001)
        assert await harness.store.workers() == []

    async def test_a_worker_that_leaves_is_gone_at_once(self, harness: Harness) -> None:
        await harness.store.announce(card("stays"), [])
        await harness.store.announce(card("goes"), [])
        await harness.store.announce(card("goes", 2), [], leaves=True)
        assert [one.id for one in await harness.store.workers()] == ["stays"]

    async def test_a_worker_is_ordered_to_stop(self, harness: Harness) -> None:
        await harness.store.announce(card("a"), [])
        await harness.store.announce(card("b"), [])
        async with second(harness) as other:
            assert await other.order_stop(["a", "unknown"]) == ["a"]
        assert await harness.store.announce(card("a", 2), []) == Orders(stop=True)
        assert await harness.store.announce(card("b", 2), []) == Orders(stop=False)
        assert await harness.store.announce(card("a", 3), []) == Orders(stop=True), "an answer may have been lost"

    async def test_a_worker_that_is_gone_is_not_ordered(self, harness: Harness) -> None:
        await harness.store.announce(card("a"), [])
        await harness.store.announce(card("a", 2), [], leaves=True)
        await harness.store.announce(card("b"), [])
        await harness.advance(ANNOUNCED_MS / 1000)
        assert await harness.store.order_stop(["a", "b"]) == []

    async def test_an_order_is_for_one_start_of_a_worker(self, harness: Harness) -> None:
        await harness.store.announce(card("first start", name="mailer"), [])
        await harness.store.order_stop(["first start"])
        assert await harness.store.announce(card("second start", name="mailer"), []) == Orders()


class TalliesContract:
    """What workers counted, by time, queue and name."""

    async def test_a_tally_is_returned_in_its_minute(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        given = tally(
            now_ms,
            enqueued=1,
            claimed=2,
            succeeded=3,
            errored=4,
            crashed=5,
            failed=6,
            cancelled=7,
            snoozed=8,
            lost=9,
            run_ms=1_234,
            wait_ms=56,
            run_buckets=durations(0, 3, 3),
            wait_buckets=durations(24),
            error_groups=(group("aa", 3, now_ms), group("bb", 1, now_ms)),
        )
        await harness.store.announce(card(), [given])
        assert await _tallies(harness) == [given]
        async with second(harness) as other:
            assert await other.tallies(0, now_ms + MINUTE_MS, MINUTE_MS) == [given]

    async def test_tallies_of_several_announcements_and_workers_are_added(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        one = {"claimed": 2, "run_ms": 10, "run_buckets": durations(1, 2)}
        await harness.store.announce(card("a"), [tally(now_ms, **one, error_groups=(group("x", 2, now_ms, "old"),))])
        await harness.store.announce(card("a", 2), [tally(now_ms, **one)])
        later = group("x", 3, now_ms + 5, "new")
        await harness.store.announce(card("b"), [tally(now_ms, **one, lost=1, error_groups=(later,))])
        expected = tally(
            now_ms,
            claimed=6,
            lost=1,
            run_ms=30,
            run_buckets=durations(1, 2, 1, 2, 1, 2),
            error_groups=(group("x", 5, now_ms + 5, "new"),),
        )
        assert await _tallies(harness) == [expected]

    async def test_an_announcement_that_is_sent_twice_counts_once(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        given = [tally(now_ms, claimed=2), tally(now_ms, queue="other", claimed=3)]
        await harness.store.announce(card(announcement=7), given)
        await harness.store.announce(card(announcement=7), given)
        await harness.advance(ANNOUNCED_MS / 1000 + 1)
        await harness.store.announce(card(announcement=7), given)
        assert [one.claimed for one in await _tallies(harness)] == [2, 3]

    async def test_workers_that_announce_at_once_do_not_overwrite_each_other(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        async with second(harness) as other:
            stores = [harness.store, other]
            calls = [
                stores[number % 2].announce(card(f"w{number}"), [tally(now_ms, claimed=1), tally(now_ms, name="b")])
                for number in range(10)
            ]
            await asyncio.gather(*calls)
        claimed = {one.name: one.claimed for one in await _tallies(harness)}
        assert claimed[NAME] == 10

    async def test_they_come_by_start_queue_and_name(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        about = [("b", "x", 0), ("a", "y", 0), ("a", "x", 0), ("a", "x", -MINUTE_MS)]
        given = [tally(now_ms + ms, queue=queue, name=name, claimed=1) for queue, name, ms in about]
        await harness.store.announce(card(), given)
        found = [(one.start_ms, one.queue, one.name) for one in await _tallies(harness)]
        assert found == sorted((one.start_ms, one.queue, one.name) for one in given)

    async def test_they_are_filtered_by_time_queue_and_name(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        minutes = [tally(now_ms - back * MINUTE_MS, claimed=back) for back in (3, 2, 1)]
        others = [tally(now_ms, queue="other", claimed=8), tally(now_ms, name="other", claimed=9)]
        await harness.store.announce(card(), [*minutes, *others])
        since_ms, until_ms = minutes[1].start_ms, minutes[2].start_ms
        found = await harness.store.tallies(since_ms, until_ms, MINUTE_MS)
        assert [one.claimed for one in found] == [2], "the start is inclusive, the end exclusive"
        assert [one.claimed for one in await _tallies(harness, queue="other")] == [8]
        assert [one.claimed for one in await _tallies(harness, name="other")] == [9]
        assert await _tallies(harness, queue="nowhere") == []

    async def test_longer_steps_are_sums(self, harness: Harness) -> None:
        hour_ms = harness.store.now() // HOUR_MS * HOUR_MS
        minutes = [hour_ms - HOUR_MS, hour_ms - 1, hour_ms, hour_ms + MINUTE_MS, hour_ms + 11 * MINUTE_MS]
        given = [tally(ms, claimed=1, run_buckets=durations(2), run_ms=5) for ms in minutes]
        await harness.store.announce(card(), given)
        by_hour = await _tallies(harness, step_ms=HOUR_MS)
        assert [(one.start_ms, one.claimed, one.run_ms) for one in by_hour] == [
            (hour_ms - HOUR_MS, 2, 10),
            (hour_ms, 3, 15),
        ]
        by_ten = await _tallies(harness, step_ms=10 * MINUTE_MS)
        assert [one.claimed for one in by_ten] == [1, 1, 2, 1]
        by_two = await _tallies(harness, step_ms=2 * MINUTE_MS)
        assert [one.claimed for one in by_two] == [1, 1, 2, 1]
        by_two_hours = await _tallies(harness, step_ms=2 * HOUR_MS)
        assert sum(one.claimed for one in by_two_hours) == 5
        assert {one.step_ms for one in by_two_hours} == {2 * HOUR_MS}

    async def test_long_steps_are_kept_longer(self, harness: Harness) -> None:
        await harness.store.announce(card(), [tally(harness.store.now(), claimed=1)])
        for step_ms, kept_ms in TALLIES_KEPT_MS.items():
            assert len(await _tallies(harness, step_ms=step_ms)) == 1
            await harness.advance(kept_ms / 1000)
            await harness.store.purge()
            assert await _tallies(harness, step_ms=step_ms) == []

    async def test_names_with_unusual_characters(self, harness: Harness) -> None:
        about = {"queue": "a.b$c", "name": "d.e:f{g}$h"}
        given = tally(harness.store.now(), claimed=1, error_groups=(group("aa", 1, 5, "$job.1"),), **about)
        await harness.store.announce(card("w.1:{x}$"), [given])
        assert await _tallies(harness) == [given]
        assert await _tallies(harness, queue="a.b$c", name="d.e:f{g}$h") == [given]


async def _tallies(
    harness: Harness, step_ms: int = MINUTE_MS, queue: str | None = None, name: str | None = None
) -> list[Tally]:
    return await harness.store.tallies(0, harness.store.now() + 100 * HOUR_MS, step_ms, queue, name)
