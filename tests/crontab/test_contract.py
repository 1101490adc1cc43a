"""Every store of a crontab keeps every promise of the port."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from jobmill.core.durations import to_datetime
from jobmill.crontab import Changes, CrontabJob, Ending
from tests.crontab.harness import CrontabHarness, Kept


def at(harness: CrontabHarness, seconds: float = 0.0) -> datetime:
    """This number of seconds after the time of the store."""
    return to_datetime(harness.clock() + round(seconds * 1000))


async def add(harness: CrontabHarness, id: str = "a", seconds: float = 0.0) -> datetime:
    """A document that is due then."""
    due = at(harness, seconds)
    await harness.add(id, Kept(sleep_until=due))
    return due


async def locked(harness: CrontabHarness, id: str = "a") -> tuple[CrontabJob, datetime]:
    """A document, under a lock of a minute, and its fence."""
    await add(harness, id)
    job = await harness.store.lock_next(at(harness, 60))
    assert job is not None
    return job, job.locked_until or at(harness, 60)


# ------------------------------------------------------------------------------------------------ lock_next


async def test_a_due_document_is_locked_and_returned_as_it_was_before(harness: CrontabHarness) -> None:
    document = Kept(
        sleep_until=at(harness, -5),
        interval="*/5 * * * *",
        repeat_until=at(harness, 3600),
        auto_remove=True,
        data={"name": "Ada", "n": 3},
    )
    await harness.add("a", document)
    job = await harness.store.lock_next(at(harness, 60))
    assert job is not None
    assert (job.sleep_until, job.interval, job.repeat_until, job.auto_remove) == (
        document.sleep_until,
        document.interval,
        document.repeat_until,
        True,
    )
    assert {"name": "Ada", "n": 3}.items() <= job.data.items()
    assert job.sleep_until.utcoffset() == timedelta(0)
    assert job.locked_until in (None, at(harness, 60))
    kept = await harness.kept("a")
    assert kept is not None
    assert kept.sleep_until == at(harness, 60)
    assert (kept.interval, kept.repeat_until, kept.auto_remove) == (
        document.interval,
        document.repeat_until,
        True,
    )


async def test_missing_fields_are_none_and_false(harness: CrontabHarness) -> None:
    job, _ = await locked(harness)
    assert (job.interval, job.repeat_until, job.auto_remove) == (None, None, False)


@pytest.mark.parametrize(("seconds", "is_due"), [(-1, True), (0, True), (0.001, False), (60, False)])
async def test_due_is_now_or_before(harness: CrontabHarness, seconds: float, is_due: bool) -> None:
    await add(harness, seconds=seconds)
    assert (await harness.store.lock_next(at(harness, 60)) is not None) is is_due


async def test_an_empty_store_has_no_due_document(harness: CrontabHarness) -> None:
    assert await harness.store.lock_next(at(harness, 60)) is None
    assert await harness.store.lock_many(at(harness, 60), 10) == []


async def test_a_completed_document_is_not_due(harness: CrontabHarness) -> None:
    await harness.add("a", Kept(sleep_until=None))
    assert await harness.store.lock_next(at(harness, 60)) is None
    assert await harness.store.lock_many(at(harness, 60), 10) == []


async def test_the_earliest_document_is_locked_first(harness: CrontabHarness) -> None:
    for id, seconds in (("b", -2), ("a", -3), ("c", -1)):
        await add(harness, id, seconds)
    due = [await harness.store.lock_next(at(harness, 60)) for _ in range(4)]
    # A database's own ids may be of another type than text.
    assert [job and job.sleep_until for job in due] == [at(harness, -3), at(harness, -2), at(harness, -1), None]


async def test_a_locked_document_is_due_again_when_its_lock_ends(harness: CrontabHarness) -> None:
    first, fence = await locked(harness)
    assert await harness.store.lock_next(at(harness, 60)) is None
    harness.clock.advance(59.999)
    assert await harness.store.lock_next(at(harness, 60)) is None
    harness.clock.advance(0.001)
    again = await harness.store.lock_next(at(harness, 60))
    assert again is not None
    assert (again.id, again.sleep_until) == (first.id, fence)


# ------------------------------------------------------------------------------------------------ update


async def test_an_update_writes_only_the_fields_that_are_set(harness: CrontabHarness) -> None:
    await harness.add("a", Kept(sleep_until=at(harness), interval="@daily", repeat_until=at(harness, 99)))
    job = await harness.store.lock_next(at(harness, 60))
    assert job is not None
    assert await harness.store.update(job.id, Changes(auto_remove=True)) is not False
    kept = Kept(sleep_until=at(harness, 60), interval="@daily", repeat_until=at(harness, 99), auto_remove=True)
    assert await harness.kept("a") == kept
    assert await harness.store.update(job.id, Changes(sleep_until=at(harness, 7), auto_remove=False)) is not False
    kept = Kept(sleep_until=at(harness, 7), interval="@daily", repeat_until=at(harness, 99))
    assert await harness.kept("a") == kept
    assert await harness.store.update(job.id, Changes(sleep_until=None)) is not False
    assert await harness.kept("a") == Kept(sleep_until=None, interval="@daily", repeat_until=at(harness, 99))


async def test_an_update_of_nothing_writes_nothing(harness: CrontabHarness) -> None:
    job, fence = await locked(harness)
    assert await harness.store.update(job.id, Changes()) is not False
    assert await harness.kept("a") == Kept(sleep_until=fence)


async def test_a_removed_document_is_not_updated(harness: CrontabHarness) -> None:
    job, fence = await locked(harness)
    assert await harness.store.remove(job.id) is not False
    assert await harness.store.update(job.id, Changes(sleep_until=None)) is False
    assert await harness.store.update(job.id, Changes(sleep_until=None, locked_until=fence)) is False
    assert await harness.kept("a") is None


async def test_an_update_is_fenced(harness: CrontabHarness) -> None:
    job, fence = await locked(harness)
    early, late = fence - timedelta(milliseconds=1), fence + timedelta(milliseconds=1)
    for wrong in (early, late):
        assert await harness.store.update(job.id, Changes(sleep_until=None, locked_until=wrong)) is False
        assert await harness.kept("a") == Kept(sleep_until=fence)
    assert await harness.store.update(job.id, Changes(sleep_until=None, locked_until=fence)) is True
    assert await harness.kept("a") == Kept(sleep_until=None)


# ------------------------------------------------------------------------------------------------ remove


async def test_remove_deletes_the_document(harness: CrontabHarness) -> None:
    job, _ = await locked(harness)
    await add(harness, "b")
    assert await harness.store.remove(job.id) is not False
    assert await harness.kept("a") is None
    assert await harness.kept("b") is not None
    assert await harness.store.remove(job.id) is False


async def test_a_removal_is_fenced(harness: CrontabHarness) -> None:
    job, fence = await locked(harness)
    wrong = fence - timedelta(milliseconds=1)
    assert await harness.store.remove(job.id, locked_until=wrong) is False
    assert await harness.kept("a") == Kept(sleep_until=fence)
    assert await harness.store.remove(job.id, locked_until=fence) is True
    assert await harness.kept("a") is None


# ------------------------------------------------------------------------------------------------ many


async def test_lock_many_locks_the_earliest_documents(harness: CrontabHarness) -> None:
    for n in range(5):
        await add(harness, f"d{n}", -n)
    first = await harness.store.lock_many(at(harness, 60), 3)
    assert [job.sleep_until for job in first] == [at(harness, -4), at(harness, -3), at(harness, -2)]
    second = await harness.store.lock_many(at(harness, 60), 3)
    assert [job.sleep_until for job in second] == [at(harness, -1), at(harness, 0)]
    assert len({job.id for job in [*first, *second]}) == 5
    for n, job in zip((4, 3, 2, 1, 0), [*first, *second], strict=True):
        kept = await harness.kept(f"d{n}")
        assert kept is not None
        assert kept.sleep_until == job.locked_until
        assert job.locked_until is not None
        assert at(harness, 60) <= job.locked_until < at(harness, 61)


async def test_finish_many_returns_one_answer_per_ending(harness: CrontabHarness) -> None:
    ids = ["again", "done", "removed", "lost", "lost removal", "gone"]
    for n, id in enumerate(ids):
        await add(harness, id, -10 + n)
    jobs = dict(zip(ids, await harness.store.lock_many(at(harness, 60), 9), strict=True))
    fences = {id: job.locked_until for id, job in jobs.items()}
    for id in ("lost", "lost removal"):
        assert await harness.store.update(jobs[id].id, Changes(sleep_until=at(harness, 7))) is not False
    await harness.store.remove(jobs["gone"].id)

    def ending(id: str, sleep_until: datetime | None = None, remove: bool = False) -> Ending:
        fence = fences[id]
        assert fence is not None
        return Ending(id=jobs[id].id, locked_until=fence, sleep_until=sleep_until, remove=remove)

    answers = await harness.store.finish_many(
        [
            ending("again", at(harness, 300)),
            ending("lost", at(harness, 300)),
            ending("done"),
            ending("gone", at(harness, 300)),
            ending("removed", remove=True),
            ending("lost removal", remove=True),
        ]
    )
    assert answers == [True, False, True, False, True, False]
    left = {id: await harness.kept(id) for id in ids}
    assert {id: kept and kept.sleep_until for id, kept in left.items()} == {
        "again": at(harness, 300),
        "done": None,
        "removed": None,
        "lost": at(harness, 7),
        "lost removal": at(harness, 7),
        "gone": None,
    }
    assert [id for id, kept in left.items() if kept is None] == ["removed", "gone"]


async def test_finish_many_without_endings(harness: CrontabHarness) -> None:
    assert await harness.store.finish_many([]) == []


# ------------------------------------------------------------------------------------------------ several workers


async def test_several_workers_never_lock_the_same_document(harness: CrontabHarness) -> None:
    for n in range(60):
        await add(harness, f"d{n}", -n)
    stores = [harness.store, *[await harness.another() for _ in range(3)]]

    async def drain(number: int) -> list[object]:
        store, mine = stores[number], list[object]()
        # A store may skip documents whose owner is unknown, until their lock ends.
        lock_until = at(harness, 60 + number)
        while True:
            jobs = (
                await store.lock_many(lock_until, 7)
                if number % 2
                else [job]
                if (job := await store.lock_next(lock_until))
                else []
            )
            if not jobs:
                return mine
            mine += [job.id for job in jobs]

    drained = [id for ids in await asyncio.gather(*[drain(number) for number in range(4)]) for id in ids]
    assert len(drained) == len(set(drained)) == 60


async def test_migrate_can_be_repeated(harness: CrontabHarness) -> None:
    await harness.store.migrate()
    await harness.store.migrate()
    await add(harness)
    assert await harness.store.lock_next(at(harness, 60)) is not None
