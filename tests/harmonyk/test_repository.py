"""The repository's way in: what its jobs are, and that workers run them by Harmonyk's rule."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client, InvalidValue, fixed, harmonyk
from jobmill.core.durations import to_datetime
from jobmill.store import Store
from jobmill.testing import ManualClock


@pytest.fixture
def repository(jobs: Client) -> harmonyk.Repository:
    return harmonyk.Repository(jobs)


async def due_again(jobs: Client, id: str, clock: ManualClock) -> int:
    """Run the job, which errors, and go to where it is due again; how long that is, in seconds."""
    assert (await jobs.tick()).claimed == 1
    job = await jobs.get(id)
    waits_ms = job.due_ms - clock() if job.state == "waiting" else 0
    clock.advance(waits_ms / 1_000)
    return waits_ms // 1_000


async def runs_of(jobs: Client, id: str, clock: ManualClock) -> list[int]:
    """Run the job until it has failed; the seconds between its runs."""
    waits: list[int] = []
    while (wait := await due_again(jobs, id, clock)) > 0:
        waits.append(wait)
    job = await jobs.get(id)
    assert (job.state, job.errors) == ("failed", len(waits) + 1)
    return waits


# ---------------------------------------------------------------------------------------------------- enqueue


async def test_a_job_of_the_repository(jobs: Client, repository: harmonyk.Repository, clock: ManualClock) -> None:
    id = await repository.enqueue("hygiene_scan", "acme", {"folder": 7})
    job = await jobs.get(id)
    assert (job.id, job.name, job.tenant, job.payload, job.queue) == (
        id,
        "hygiene_scan",
        "acme",
        {"folder": 7},
        "default",
    )
    assert (job.state, job.due_ms, job.options.preset, job.unique_key) == ("waiting", clock(), "harmonyk", None)
    assert job.to_dict()["options"] == {"preset": "harmonyk"}


async def test_all_but_the_type_may_be_left_out(jobs: Client, repository: harmonyk.Repository) -> None:
    for id in (await repository.enqueue("scan"), await repository.enqueue("scan", None, None, None)):
        job = await jobs.get(id)
        assert (job.tenant, job.payload, job.due_ms) == (None, {}, job.created_ms)


async def test_a_job_may_run_later(jobs: Client, repository: harmonyk.Repository, clock: ManualClock) -> None:
    run_at = to_datetime(clock()) + timedelta(hours=1)
    job = await jobs.get(await repository.enqueue("scan", run_at=run_at))
    assert (job.state, job.due_at) == ("waiting", run_at)


async def test_a_handler_that_is_known_has_its_options_and_its_signature(
    jobs: Client, repository: harmonyk.Repository
) -> None:
    @jobs.handler(queue="scans", priority=3, max_attempts=2)
    async def scan(folder: int) -> None: ...

    job = await jobs.get(await repository.enqueue("scan", payload={"folder": 7}))
    assert (job.queue, job.priority, job.options.max_attempts, job.options.preset) == ("scans", 3, 2, "harmonyk")
    with pytest.raises(InvalidValue, match="^payload: expected arguments"):
        await repository.enqueue("scan", payload={"file": 7})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": ""}, "type: expected a text of 1 to 255 characters without white space"),
    ({"type": "a scan"}, "type: expected a text of 1 to 255 characters without white space"),
    ({"type": "scan", "org_id": ""}, "org_id: expected a text of 1 to 255 characters"),
    ({"type": "scan", "org_id": 7}, "org_id: expected a text of 1 to 255 characters"),
    ({"type": "scan", "run_at": datetime(2030, 1, 1)}, "run_at: expected an aware datetime"),
    ({"type": "scan", "run_at": datetime(1969, 1, 1, tzinfo=UTC)}, "run_at: expected "),
    ({"type": "scan", "payload": {"at": float("nan")}}, "payload.at: expected a finite number"),
    ({"type": "scan", "dedupe": "yes"}, "dedupe: expected True or False, got 'yes'"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
async def test_refusals_name_the_arguments(
    jobs: Client, repository: harmonyk.Repository, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        await repository.enqueue(**given)
    assert str(refused.value).startswith(message)
    assert await jobs.count() == []


async def test_the_same_job_once(jobs: Client, repository: harmonyk.Repository) -> None:
    first = await repository.enqueue("scan", "acme", {"a": 1, "b": 2.0}, dedupe=True)
    assert await repository.enqueue("scan", "acme", {"b": 2, "a": 1.0}, dedupe=True) == first
    others = [
        await repository.enqueue("scan", "acme", {"a": 1, "b": 2}),
        await repository.enqueue("scan", None, {"a": 1, "b": 2}, dedupe=True),
        await repository.enqueue("scan", "acme", {"a": 1, "b": 3}, dedupe=True),
    ]
    assert len({first, *others}) == 4
    assert (await jobs.get(first)).unique_key == harmonyk.dedupe_key("scan", "acme", {"a": 1, "b": 2})
    await repository.mark_success(first)
    assert await repository.enqueue("scan", "acme", {"a": 1, "b": 2}, dedupe=True) != first


@pytest.mark.stores("sqlite")
async def test_a_job_in_the_callers_own_transaction(
    jobs: Client, repository: harmonyk.Repository, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        await repository.enqueue("scan", within=connection)
        connection.rollback()
        assert await jobs.count() == []
        id = await repository.enqueue("scan", within=connection)
        connection.commit()
    assert (await jobs.get(id)).options.preset == "harmonyk"


def test_code_without_a_loop(store: Store) -> None:
    jobs = jobmill.connect(store=store)
    repository = harmonyk.Repository(jobs)
    try:
        id = jobs.sync(repository.enqueue("scan"))
        assert jobs.sync(repository.mark_failure(id, "locked")).status == "queued"
        assert jobs.sync(repository.mark_success(id)).status == "success"
    finally:
        jobs.sync.close()


class InMemory:
    """Somebody's own, which says nothing."""

    async def enqueue(
        self,
        type: str,
        org_id: str | None = None,
        payload: dict[str, Any] | None = None,
        run_at: datetime | None = None,
    ) -> str:
        return f"{type}-1"

    async def mark_success(self, id: str) -> None: ...

    async def mark_failure(self, id: str, error: str) -> None: ...


async def test_both_are_repositories(repository: harmonyk.Repository) -> None:
    both: list[harmonyk.JobsRepository] = [repository, InMemory()]
    for one in both:
        marked = await one.mark_success(await one.enqueue("scan", run_at=None))
        assert marked in (None, harmonyk.Marked(changed=True, status="success"))


# ---------------------------------------------------------------------------------------------------- run


async def test_workers_run_it_six_times(jobs: Client, repository: harmonyk.Repository, clock: ManualClock) -> None:
    @jobs.handler
    async def scan() -> None:
        raise ValueError("no luck")

    id = await repository.enqueue("scan")
    assert await runs_of(jobs, id, clock) == [1, 2, 4, 8, 16]
    assert harmonyk.last_error(await jobs.get(id)) == "ValueError: no luck"
    # Also when it is given another life.
    await jobs.requeue(id)
    assert await runs_of(jobs, id, clock) == [1, 2, 4, 8, 16]
    # Other jobs of the same handler keep the usual rule.
    assert await runs_of(jobs, (await scan.enqueue()).id, clock) == [1, 2]


SAID: list[tuple[dict[str, Any], list[int]]] = [
    # Said, though it is the usual number.
    ({"max_attempts": 3}, [1, 2]),
    ({"max_attempts": 8}, [1, 2, 4, 8, 16, 32, 60]),
    ({"backoff": fixed("5s")}, [5, 5, 5, 5, 5]),
    ({"backoff": lambda attempt, error: attempt * 10}, [10, 20, 30, 40, 50]),
    ({"max_attempts": 2, "backoff": "7s"}, [7]),
    ({"max_crashes": 1, "timeout": "1m", "keep_failed": True}, [1, 2, 4, 8, 16]),
]


@pytest.mark.parametrize("known", [True, False], ids=["known to the repository", "known to the worker alone"])
@pytest.mark.parametrize(("said", "waits"), SAID, ids=[" ".join(said) for said, _ in SAID])
async def test_what_its_handler_says_goes_before(
    jobs: Client, store: Store, clock: ManualClock, said: dict[str, Any], waits: list[int], known: bool
) -> None:
    @jobs.handler(**said)
    async def scan() -> None:
        raise ValueError("no luck")

    client = jobs if known else jobmill.connect(store=store)
    id = await harmonyk.Repository(client).enqueue("scan")
    assert await runs_of(jobs, id, clock) == waits
