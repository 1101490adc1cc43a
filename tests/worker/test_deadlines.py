"""Deadlines of running jobs."""

from __future__ import annotations

from typing import Any

import pytest

from jobmill.worker import deadlines
from jobmill.worker.deadlines import Deadlines
from jobmill.worker.running import Run


async def test_deadlines_forget_runs_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "MIN_SWEEP_SIZE", 10)
    kept = Deadlines()
    live = [a_run() for _ in range(5)]
    for run in live:
        kept.add(run, 3_600_000)
    for _ in range(1_000):
        short = a_run()
        kept.add(short, 3_600_000)
        short.over = True
    assert len(kept._heap) <= 2 * 15
    assert {entry[2] for entry in kept._heap} >= set(live)
    kept.clear()


def a_run() -> Run:
    nothing: Any = None
    return Run(nothing, nothing, nothing, 0.0, nothing, nothing)
