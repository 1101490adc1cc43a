"""Data that JSON of JavaScript may hold and JSON of Python may not: it is read, or the job is left to Node."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

import jobmill
from jobmill import Client
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.interop.scene import node_place
from tests.kit.node import NodeProcess

pytestmark = pytest.mark.stores("redis")

#: Arguments as JavaScript reads them, and as our handler must get them.
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "a cut emoji": (r'{"text": "hello \ud83c"}', {"text": "hello \ufffd"}),
    "the other half": (r'{"text": "\udf89 a"}', {"text": "\ufffd a"}),
    "halves in the wrong order": (r'{"text": "\udf89\ud83c"}', {"text": "\ufffd\ufffd"}),
    "in a key": (r'{"rest": {"\ud83c": 1}}', {"rest": {"\ufffd": 1}}),
    "a whole one": (r'{"text": "\ud83c\udf89"}', {"text": "🎉"}),
    "a backslash": (r'{"text": "\\ud83c \\\ud83c"}', {"text": "\\ud83c \\\ufffd"}),
    "2 ** 64": (r'{"number": 18446744073709552000}', {"number": 18446744073709552000}),
    "2 ** 70": (r'{"number": 1180591620717411303424}', {"number": 2**70}),
    "a large number, as text too": (r'{"number": -1e21, "text": "1e+21"}', {"number": -(10**21), "text": "1e+21"}),
}


@pytest.mark.parametrize("about", DATA)
async def test_the_handler_gets_what_can_be_read(redis_url: str, node_ops: NodeProcess, about: str) -> None:
    json, expected = DATA[about]
    url, prefix = node_place(redis_url)
    async with jobmill.connect(redis_url) as jobs:
        got: list[dict[str, Any]] = []

        @jobs.handler(queue="mail")
        async def take(text: str = "", number: int = 0, rest: Any = None) -> str:
            given = {"text": text, "number": number, "rest": rest}
            got.append({name: value for name, value in given.items() if value})
            return text

        await node_ops.ask(
            "add", url=url, prefix=prefix, queue="mail", name="take", json=f'{{"data": {json}}}', opts={}
        )
        waiting = await jobs.get("mail:1")
        assert waiting.payload.get("text") == expected.get("text")
        await jobs.tick()
        job = await jobs.get("mail:1")
        assert (job.state, job.error, got) == ("succeeded", None, [expected])


async def test_a_result_and_a_stack_with_half_a_pair(redis_url: str, node_ops: NodeProcess) -> None:
    url, prefix = node_place(redis_url)
    where = {"url": url, "prefix": prefix, "queue": "mail", "worker": "node"}
    async with jobmill.connect(redis_url) as jobs:

        @jobs.handler(queue="mail")
        async def take() -> None:
            """Nothing."""

        for end in (r'{"how": "throw", "error": "no", "stack": "\ud83c"}', r'{"how": "return", "value": "\ud83c"}'):
            id = await node_ops.ask("add", **where, name="take", data={}, opts={"attempts": 2})
            assert await node_ops.ask("claim", **where, token="t") == id
            await node_ops.ask("settle", **where, job=id, token="t", json=f'{{"end": {end}}}')
            job = await jobs.get(f"mail:{id}")
            texts = tuple(attempt.traceback for attempt in job.attempts)
            assert (job.result, texts) in ((None, ("\ufffd",)), ("\ufffd", ()))
            await jobs.tick()
            assert (await jobs.get(f"mail:{id}")).state == "succeeded"


#: Jobs that Node can run and we cannot read. Newer versions of Python read deeper data.
NOT_OURS = {
    "deep data": {"data": {"rest": "DEEP"}, "opts": {}},
    "a time that nobody can count": {"data": {}, "opts": {"timestamp": 1e300}},
}
DEEP = "[" * 3_000 + "]" * 3_000


def can_read(json: str) -> bool:
    try:
        msgspec.json.decode(json)
    except RecursionError:
        return False
    return True


@pytest.mark.parametrize("about", NOT_OURS)
async def test_a_job_that_we_cannot_read_is_left_to_node(
    redis_url: str, node_ops: NodeProcess, about: str, caplog: pytest.LogCaptureFixture
) -> None:
    if about == "deep data" and can_read(DEEP):
        pytest.skip("this Python reads 3,000 levels")
    url, prefix = node_place(redis_url)
    where = {"url": url, "prefix": prefix, "queue": "mail", "worker": "node"}
    json = msgspec.json.encode(NOT_OURS[about]).decode().replace('"DEEP"', DEEP)
    id = await node_ops.ask("add", **where, name="take", json=json)
    delays = []
    async with jobmill.connect(redis_url) as jobs, Redis.from_url(url) as redis, given_back_by(jobs):
        for claims in (1, 2):
            await waits_after(claims, jobs, id)
            assert await node_ops.ask("state", **where, job=id) == "waiting", "Node may claim it at once"
            job = await jobs.get(f"mail:{id}")
            assert (job.state, job.error, job.errors) == ("waiting", None, 0)
            until_ms, now_ms = await redis.hmget(f"{prefix}:mail:{id}", "jmn", "jmu")
            delays.append(int(until_ms or 0) - int(now_ms or 0))
    assert delays == [2_000, 4_000], "we leave it alone for longer each time"
    warnings = [record.getMessage() for record in caplog.records if "is left to other programs" in record.getMessage()]
    assert len(warnings) == 1
    assert f"job mail:{id} (take) is left to other programs: the stored job cannot be read: " in warnings[0]
    # Node runs it, as if nobody else had had it.
    assert await node_ops.ask("claim", **where, token="t") == id
    await node_ops.ask("settle", **where, job=id, token="t", end={"how": "return", "value": 1})
    assert await node_ops.ask("state", **where, job=id) == "completed"


async def waits_after(claims: int, jobs: Client, id: str) -> None:
    """Until the job waits after this number of claims."""

    async def does_wait() -> bool:
        job = await jobs.get(f"mail:{id}")
        return (job.claims, job.state) == (claims, "waiting")

    await until(does_wait, 20)


@contextlib.asynccontextmanager
async def given_back_by(jobs: Client) -> AsyncIterator[None]:
    """A worker that has a handler for the job."""

    @jobs.handler(queue="mail")
    async def take(rest: Any = None) -> None:
        raise AssertionError("it must not run here")

    async with Worker(jobs, queues=["mail"]):
        yield
