"""Payloads that MongoDB might hold wrongly, through a client and a worker: stored right, or refused clearly."""

from __future__ import annotations

from typing import Any

import pytest

import jobmill
from jobmill.testing import drain
from tests.stores_under_test import migrated_mongo

pytestmark = pytest.mark.stores("mongo")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        {"a.b": 1, "a": {"b.c.": ".", "": {"": 0}}},
        {"$set": {"$where": 1}, "$": 2, "a": {"$ref": "x", "$id": 1}},
        {"text": "a\0b", "\U0001f600": "\u2028"},
        {"n": [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]},
        {"floats": [1.0, 1e300, -0.5]},
        {"long": "x" * 8_000_000},
        {"_id": 1, "__proto__": 2, "jobmill": 3},
        nested(60),
    ],
    ids=["dots", "dollars", "texts", "integers", "floats", "long", "names", "deep"],
)
async def test_what_is_stored_right(mongo_url: str, value: Any) -> None:
    """A worker gets what was enqueued, in the types that it had, and its result comes back."""
    async with jobmill.connect(await migrated_mongo(mongo_url)) as jobs:

        @jobs.handler()
        async def echo(payload: Any) -> Any:
            return payload

        enqueued = await echo.enqueue(value)
        await drain(jobs)
        result = await enqueued.result(timeout=20)
        assert result == value
        assert str(result) == str(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a\0b": 1}, "NUL in keys"),
        ({"n": 2**63}, "integers from"),
        ({"long": "x" * (17 << 20)}, "exceeds limit"),
        ([0] * 4_000_000, "bytes"),  # 8 MB of JSON, and much more of BSON, where each has a number
        (nested(400), "payload"),
    ],
    ids=["NUL", "integer", "long", "numbers", "deep"],
)
async def test_what_is_refused_clearly(mongo_url: str, value: Any, why: str) -> None:
    async with jobmill.connect(await migrated_mongo(mongo_url)) as jobs:
        with pytest.raises((jobmill.InvalidValue, jobmill.PayloadTooLarge), match=why):
            await jobs.enqueue("echo", {"payload": value})
        await jobs.enqueue("echo", {"payload": 1})
        assert [one.count for one in await jobs.count()] == [1]


@pytest.mark.parametrize("depth", range(80, 260, 20))
async def test_depths_are_stored_or_refused(mongo_url: str, depth: int) -> None:
    """The server takes fewer levels than the driver writes."""
    async with jobmill.connect(await migrated_mongo(mongo_url)) as jobs:
        try:
            enqueued = await jobs.enqueue("echo", {"payload": nested(depth)})
        except jobmill.InvalidValue:
            assert await jobs.count() == []
        else:
            assert (await jobs.get(enqueued.id)).payload == {"payload": nested(depth)}


@pytest.mark.slow
async def test_a_result_that_does_not_fit_beside_the_payload(mongo_url: str) -> None:
    """The job fails without a retry. A job with the same result and a small payload does not fail."""
    async with jobmill.connect(await migrated_mongo(mongo_url)) as jobs:
        runs = []

        @jobs.handler()
        async def fill(payload: str) -> str:
            runs.append(payload)
            return "x" * 9_000_000

        large = await fill.enqueue("x" * 8_000_000)
        small = await fill.enqueue("x")
        await drain(jobs)
        said = "its result cannot be stored: it has 9,000,002 bytes, and the job has 8,000,[0-9]{3} without it; "
        with pytest.raises(jobmill.JobFailed, match=f"the handler finished, but {said}.* 16,777,216 bytes"):
            await large.result(timeout=20)
        assert len(await small.result(timeout=20)) == 9_000_000
        assert len(runs) == 2


async def test_a_payload_that_does_not_fit_beside_the_last_result(mongo_url: str) -> None:
    async with jobmill.connect(await migrated_mongo(mongo_url)) as jobs:

        @jobs.handler()
        async def fill(payload: str) -> str:
            return "x" * 9_000_000

        await fill.options(every="1h", key="fill").enqueue("x")
        await drain(jobs)
        with pytest.raises(
            jobmill.InvalidValue, match="payload: expected .* beside the last result .*16,777,216.*8000"
        ):
            await fill.options(every="1h", key="fill").enqueue("x" * 8_000_000)
