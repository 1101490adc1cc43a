"""A worker of the last commit before workflows, beside the present version: it runs jobs of flows unknowingly."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from msgspec import json

import jobmill
from bench.against.trees import files
from jobmill.core.flows import After, IfFailed
from jobmill.core.job import JobOptions
from jobmill.core.values import NewJob
from tests.helpers import until
from tests.kit.workers import ROOT, WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.stores("sqlite", "postgres", "redis", "mongo")]

#: The last commit before workflows.
OLD = "7dbc448"
NEW_SOURCE = ROOT / "src"
#: On SQLite and MongoDB, workers of ours look for jobs that an older process has ended every ten seconds or so.
ENDS_WITHIN_S = 60


class Beside:
    """A database that an older worker uses, and our client of it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.jobs = jobmill.connect(url)
        self.processes = WorkerProcesses(folder, url)
        self.old_source = files(OLD) / "src"
        #: The jobs that each waits for, by id.
        self.after: dict[str, tuple[str, ...]] = {}

    async def run_old(self, *args: str) -> str:
        """What a command of the older version prints."""
        process = self.processes.start(*args, source=self.old_source)
        await until(lambda: process.poll() is not None, 30)
        printed = self.processes.output(process)
        assert process.returncode == 0, printed
        return printed

    async def worker(self, source: Path = NEW_SOURCE) -> subprocess.Popen[bytes]:
        """A worker that works."""
        worker = self.processes.start("worker", "tests.kit.handlers:jobs", "--lease", "5s", source=source)

        def is_there() -> bool:
            assert worker.poll() is None, self.processes.output(worker)
            return "concurrency" in self.processes.output(worker)

        await until(is_there, 30)
        return worker

    async def enqueue(
        self, edges: Mapping[str, str], fails: str = "", if_failed: Mapping[str, IfFailed] | None = None
    ) -> dict[str, str]:
        """Jobs by letters, and the letters of the jobs that each waits for; their ids."""
        store = self.jobs.store
        ids = {letter: store.new_id() for letter in edges}
        self.after |= {ids[letter]: tuple(ids[one] for one in waits_for) for letter, waits_for in edges.items()}
        await store.enqueue(
            [
                NewJob(
                    id=id,
                    name="ends",
                    queue="default",
                    payload_json=json.encode({"fails": letter in fails}),
                    options=JobOptions(max_attempts=1),
                    after=tuple(After(one, (if_failed or {}).get(letter, "fail")) for one in self.after[id]),
                )
                for letter, id in ids.items()
            ]
        )
        return ids

    async def states(self, ids: Mapping[str, str]) -> dict[str, str]:
        """By letters."""
        return {letter: (await self.jobs.get(id)).state for letter, id in ids.items()}

    async def come_to(self, ids: Mapping[str, str], **states: str) -> None:
        """Until these jobs, by letters, have these states."""

        async def are_so() -> bool:
            now = await self.states(ids)
            return all(now[letter] == state for letter, state in states.items())

        try:
            await until(are_so, ENDS_WITHIN_S)
        except AssertionError:
            raise AssertionError(f"expected {states}, got {await self.states(ids)}") from None

    def ran(self) -> Counter[str]:
        """How often each job ran. None has run before the jobs that it waits for had ended."""
        ended: set[str] = set()
        ran: Counter[str] = Counter()
        for note in self.processes.notes():
            if note.word == "end":
                ended.add(note.id)
            if note.word == "run":
                assert ended.issuperset(self.after[note.id]), f"{note.id} ran before {self.after[note.id]} had ended"
                ran[note.id] += 1
        return ran

    async def replace_workers(self) -> None:
        """The older worker ends, and one of the present version runs the jobs of the paused queue."""
        self.processes.end()
        await self.jobs.queue("default").resume()
        await self.worker()


@pytest.fixture
async def beside(store_name: str, empty_url: str, tmp_path: Path) -> AsyncIterator[Beside]:
    """The older worker works when the present version migrates the database."""
    made = Beside(empty_url, tmp_path)
    try:
        await made.run_old("migrate")
        await made.worker(made.old_source)
        await made.jobs.store.migrate()
        async with made.jobs:
            yield made
    finally:
        made.processes.end()


async def test_it_runs_jobs_that_others_wait_for(beside: Beside) -> None:
    ids = await beside.enqueue({"a": "", "b": "", "c": "ab", "d": "a", "e": "cd"})
    await beside.come_to(ids, a="succeeded", b="succeeded")
    await beside.worker()
    await beside.come_to(ids, **dict.fromkeys(ids, "succeeded"))
    assert beside.ran() == Counter(ids.values())


async def test_both_versions_run_flows(beside: Beside) -> None:
    """Diamonds: no job is lost, none runs twice, none too early."""
    await beside.worker()
    diamonds = [await beside.enqueue({"a": "", "b": "a", "c": "a", "d": "bc"}) for _ in range(20)]
    for ids in diamonds:
        await beside.come_to(ids, **dict.fromkeys(ids, "succeeded"))
    assert beside.ran() == Counter(id for ids in diamonds for id in ids.values())


async def test_a_job_that_others_wait_for_fails_in_it(beside: Beside, store_name: str) -> None:
    """On MongoDB it does not know that a job must fail, and runs it if it is the first to claim it."""
    ids = await beside.enqueue({"a": "", "b": "a", "c": "a"}, fails="a", if_failed={"c": "run"})
    await beside.come_to(ids, a="failed")
    await beside.worker()
    await beside.come_to(ids, c="succeeded")
    await until(lambda: is_final(beside, ids["b"]), ENDS_WITHIN_S)
    assert beside.ran()[ids["b"]] == ((await beside.states(ids))["b"] == "succeeded")
    assert store_name == "mongo" or beside.ran()[ids["b"]] == 0


async def is_final(beside: Beside, id: str) -> bool:
    return (await beside.jobs.get(id)).is_final


@pytest.mark.stores("redis", "postgres")
async def test_it_runs_a_job_that_needs_a_result(beside: Beside) -> None:
    """It fails: the placeholder is no argument. The present version runs it."""
    store = beside.jobs.store
    first, then = store.new_id(), store.new_id()
    needs = {"n": {"$result": 0}}
    await store.enqueue(
        [
            NewJob(id=first, name="short", queue="default", payload_json=json.encode({"n": 3})),
            NewJob(id=then, name="short", queue="default", payload_json=json.encode(needs), after=(After(first),)),
        ]
    )
    await until(lambda: is_final(beside, then))
    failed = await beside.jobs.get(then)
    assert (failed.state, "expected arguments that fit" in str(failed.error)) == ("failed", True)
    await beside.replace_workers()
    assert (await beside.jobs.requeue(then)).ids == [then]
    assert await beside.jobs.result(then, timeout=20) == 3


CHANGES = {
    "cancel": {"redis": "failed", "mongo": "failed"},
    "remove": {"redis": "succeeded", "mongo": "failed"},
}


@pytest.mark.stores("redis", "mongo")
@pytest.mark.parametrize("change", CHANGES)
async def test_an_old_client_changes_a_job_that_others_wait_for(beside: Beside, store_name: str, change: str) -> None:
    """A removed job counts as cancelled; on Redis as succeeded, because the older version decides as Node does."""
    await beside.jobs.queue("default").pause()
    ids = await beside.enqueue({"a": "", "b": "a", "c": "b"})
    await beside.run_old("jobs", change, ids["a"], "-y")
    await beside.replace_workers()
    del ids["a"]
    await beside.come_to(ids, **dict.fromkeys(ids, CHANGES[change][store_name]))


@pytest.mark.stores("redis", "mongo")
async def test_an_old_client_changes_a_job_that_waits_for_others(beside: Beside) -> None:
    await beside.jobs.queue("default").pause()
    ids = await beside.enqueue({"a": "", "b": "a"})
    await beside.run_old("jobs", "reschedule", ids["b"], "--delay", "0s", "-y")
    await beside.run_old("jobs", "hold", ids["b"], "-y")
    await beside.run_old("jobs", "release", ids["b"], "-y")
    assert (await beside.jobs.get(ids["b"])).held.by == ("jobs",)  # type: ignore[union-attr]
    await beside.replace_workers()
    await beside.come_to(ids, a="succeeded", b="succeeded")
    assert beside.ran() == Counter(ids.values())
