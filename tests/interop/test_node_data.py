"""Data that JSON of JavaScript may hold and JSON of Python may not."""

from __future__ import annotations

from typing import Any

import pytest

import jobmill
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
            assert (job.result, job.tracebacks) in ((None, ("\ufffd",)), ("\ufffd", ()))
            await jobs.tick()
            assert (await jobs.get(f"mail:{id}")).state == "succeeded"
