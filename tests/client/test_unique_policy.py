"""`unique_for`, `debounce` and `when_live`: what happens if a unique key is taken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jobmill import Client, InvalidValue
from jobmill.handlers.handler import Handler


@pytest.fixture
def index(jobs: Client) -> Handler[..., Any]:
    @jobs.handler
    async def index(document: int = 0, version: int = 0) -> None: ...

    return index


async def test_a_debounced_job_takes_over_the_last_payload(index: Handler[..., Any]) -> None:
    debounced = index.options(unique_key="k", debounce="5s")
    first = await debounced.enqueue(7, version=1)
    job = await first.job()
    assert (job.due_ms - job.created_ms, job.state) == (5_000, "waiting")
    again = await debounced.enqueue(7, version=2)
    assert (again.status, again.id) == ("updated", first.id)
    assert (await first.job()).payload == {"document": 7, "version": 2}


async def test_a_key_stays_taken_for_a_time(jobs: Client, index: Handler[..., Any]) -> None:
    throttled = index.options(unique_key="k", unique_for="1h")
    first = await throttled.enqueue(7)
    await jobs.tick()
    assert (await first.job()).state == "succeeded"
    again = await throttled.enqueue(7)
    assert (again.status, again.id) == ("duplicate", first.id)


async def test_the_newest_job_takes_the_place_of_a_live_one(index: Handler[..., Any]) -> None:
    newest = index.options(unique_key="k", when_live="cancel")
    first, second = await newest.enqueue(1), await newest.enqueue(2)
    assert [(await one.job()).state for one in (first, second)] == ["cancelled", "waiting"]


async def test_every_way_in_takes_the_options(jobs: Client, index: Handler[..., Any]) -> None:
    given: dict[str, Any] = {"unique_key": "k", "when_live": "replace"}
    first = await index.options(**given).enqueue(1)
    for number, again in enumerate(
        (
            await jobs.enqueue("index", {"document": 2}, **given),
            *await jobs.enqueue_many([jobs.draft("index", {"document": 3}, **given)]),
            *await jobs.enqueue_many([index.options(**given).draft(4)]),
        ),
        2,
    ):
        assert (again.status, again.id) == ("updated", first.id), number
    assert (await first.job()).payload == {"document": 4}


async def test_a_key_that_is_made_from_the_payload_can_stay_taken(jobs: Client, index: Handler[..., Any]) -> None:
    first = await index.options(dedupe=True, unique_for="1h").enqueue(7)
    await jobs.tick()
    assert (await index.options(dedupe=True, unique_for="1h").enqueue(7)).id == first.id
    assert (await index.options(dedupe=True, unique_for="1h").enqueue(8)).created


async def test_skip_is_the_default(index: Handler[..., Any]) -> None:
    first = await index.options(unique_key="k", when_live="skip").enqueue(1)
    assert (await index.options(unique_key="k").enqueue(2)).status == "duplicate"
    assert (await first.job()).payload == {"document": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"debounce": "5s"}, "debounce: expected debounce only together with unique_key or dedupe, got '5s'"),
        ({"unique_key": "k", "debounce": 0}, "debounce: expected a duration above 0, got 0"),
        ({"unique_key": "k", "unique_for": -1}, "unique_for: expected a duration above 0, got -1"),
        (
            {"unique_key": "k", "unique_for": "1h", "debounce": "5s"},
            "debounce: expected either unique_for or debounce, not both, got '5s'",
        ),
        (
            {"unique_key": "k", "debounce": "5s", "when_live": "replace"},
            "when_live: expected either debounce or when_live, not both, got 'replace'",
        ),
        (
            {"unique_key": "k", "when_live": "drop"},
            """when_live: expected one of "skip", "replace", "cancel", got 'drop'""",
        ),
        (
            {"unique_key": "k", "debounce": "5s", "delay": "1m"},
            "debounce: expected either debounce or delay, not both, got '5s'; a debounce is a delay",
        ),
        (
            {"unique_key": "k", "debounce": "5s", "due_at": datetime(2030, 1, 1, tzinfo=UTC)},
            "debounce: expected either debounce or due_at, not both, got '5s'; a debounce is a delay",
        ),
        (
            {"key": "k", "unique_key": "k", "every": "1h", "unique_for": "2h"},
            "unique_for: expected either unique_for or every, not both, got '2h'; a recurring job has one live job",
        ),
    ],
)
def test_wrong_combinations_are_refused(index: Handler[..., Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        index.options(**given)
    assert str(raised.value) == message


async def test_jobs_of_flows_have_no_policy(jobs: Client, index: Handler[..., Any]) -> None:
    first = index.options(unique_key="k", debounce="5s").draft(1)
    with pytest.raises(InvalidValue, match="a job without unique_for, debounce and when_live in a flow"):
        await index.draft(2).after(first).enqueue()
    assert (await jobs.find()).jobs == []
