"""Threads for sync handlers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from jobmill.runtime.threads import Threads


async def test_the_switch_interval_is_restored_when_the_last_worker_has_ended() -> None:
    usual = sys.getswitchinterval()
    first, second = Threads(), Threads()
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    await first.run(nothing)
    await second.run(nothing)
    first.close()
    assert sys.getswitchinterval() < usual
    second.close()
    assert sys.getswitchinterval() == pytest.approx(usual)
