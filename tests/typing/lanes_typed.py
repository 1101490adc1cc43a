"""What type checkers see of lanes.

Nothing here runs: `dev.py check` has mypy read it. A wrong call that mypy did not refuse would leave an unused ignore,
which is an error as well.
"""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

import jobmill
from jobmill import Client, Lane, LaneSettings, QueueSettings
from jobmill.client.lane import LaneHandle
from jobmill.client.sync import SyncLane

jobs: Client = jobmill.connect("memory://")


@jobs.handler(lane="reports")
async def report() -> None: ...


@jobs.handler(lane=lambda account: account)
async def charge(account: str, total: int) -> int:
    return total


@jobs.handler(lane=5)  # type: ignore[call-overload, untyped-decorator]
async def wrong() -> None: ...


async def enqueueing() -> None:
    await charge.options(lane="acme").enqueue("acme", 3)
    await jobs.enqueue("charge", {"account": "acme"}, lane="acme")
    await jobs.find(lane="acme")
    await jobs.cancel(lane="acme")
    charge.options(lane=5)  # type: ignore[arg-type]
    charge.options(lane=lambda account: account)  # type: ignore[arg-type]
    await jobs.find(lane=5)  # type: ignore[arg-type]


async def settings() -> None:
    queue = jobs.queue("mail")
    assert_type(await queue.lanes(running=2, rate=(30, "1m"), strict=True, who="ada", note="why"), QueueSettings)
    assert_type(await queue.lanes(rate=(30, timedelta(minutes=1))), QueueSettings)
    assert_type(await queue.lanes(running=None), QueueSettings)
    assert_type(queue.lane("acme"), LaneHandle)
    assert_type(await queue.lane("acme", running=10, rate=None, strict=None), LaneSettings)
    assert_type(await queue.lane("acme").pause(note="why", who="ada"), LaneSettings)
    assert_type(await queue.lane("acme").resume(), LaneSettings)
    assert_type(await queue.lane("acme").settings(), LaneSettings)
    assert_type(await queue.list_lanes(after="a", limit=5), list[Lane])
    await queue.lanes(running="2")  # type: ignore[arg-type]
    await queue.lanes(rate=30)  # type: ignore[arg-type]
    await queue.lane("acme", running="2")  # type: ignore[arg-type]


def blocking() -> None:
    queue = jobs.sync.queue("mail")
    assert_type(queue.lanes(running=2, rate=(30, "1m")), QueueSettings)
    assert_type(queue.lane("acme", running=10), SyncLane)
    assert_type(queue.lane("acme").pause(note="why"), LaneSettings)
    assert_type(queue.lane("acme").resume(who="ada"), LaneSettings)
    assert_type(queue.lane("acme").settings(), LaneSettings)
    assert_type(queue.list_lanes(limit=5), list[Lane])
    queue.lanes(running="2")  # type: ignore[arg-type]
