"""Tools for tests: the test kit for applications, a clock that the test moves, and the contract of stores.

The names below are imported when they are first used, so that the pytest plugin costs nothing where no test uses it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobmill.testing.case import JobsTestCase, JobsTestMixin
    from jobmill.testing.clock import ManualClock
    from jobmill.testing.drain_jobs import Drain, drain
    from jobmill.testing.enqueued_jobs import EnqueuedJobs
    from jobmill.testing.faults import Crash, FlakyStore, MakesCrash, MakesFlakyStore
    from jobmill.testing.inline import Inline
    from jobmill.testing.kit import Kit, LeftoverJobWarning
    from jobmill.testing.run_job import RunJob
    from jobmill.testing.runs import JobRun, JobRuns
    from jobmill.testing.travel import Travel

__all__ = [
    "Crash",
    "Drain",
    "EnqueuedJobs",
    "FlakyStore",
    "Inline",
    "JobRun",
    "JobRuns",
    "JobsTestCase",
    "JobsTestMixin",
    "Kit",
    "LeftoverJobWarning",
    "MakesCrash",
    "MakesFlakyStore",
    "ManualClock",
    "RunJob",
    "Travel",
    "drain",
]

_HOMES = {
    "case": ("JobsTestCase", "JobsTestMixin"),
    "clock": ("ManualClock",),
    "drain_jobs": ("Drain", "drain"),
    "enqueued_jobs": ("EnqueuedJobs",),
    "faults": ("Crash", "FlakyStore", "MakesCrash", "MakesFlakyStore"),
    "inline": ("Inline",),
    "kit": ("Kit", "LeftoverJobWarning"),
    "run_job": ("RunJob",),
    "runs": ("JobRun", "JobRuns"),
    "travel": ("Travel",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The public names."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobmill.testing' has no attribute {name!r}")
    return getattr(import_module(f"jobmill.testing.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    """What the package exports."""
    return sorted({*globals(), *__all__})
