"""A task that no other module imports."""

from __future__ import annotations

from jobmill.django import task


@task(queue_name="queue_1", priority=3)
def pack(number: int) -> int:
    return number
