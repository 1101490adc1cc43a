"""Usage recorders: they get a usage record of every run, one at a time or in batches.

A recorder is a function that takes one `Usage`, or an object that takes batches (`RecordsUsage`), as the SQLite and
PostgreSQL stores do. It never harms a job: workers call it outside of their loops, and its errors are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from jobmill.core.usage import Usage
from jobmill.errors import InvalidValue
from jobmill.store import RecordsUsage, Store

#: Not every store records usage; `check_usage_recorder` refuses one that does not.
UsageRecorder: TypeAlias = Callable[[Usage], Any] | RecordsUsage | Store
U = TypeVar("U", bound=UsageRecorder)


def check_usage_recorder(recorder: U) -> U:
    """Returns the recorder; InvalidValue for an object that cannot record usage."""
    if isinstance(recorder, RecordsUsage) or callable(recorder):
        return recorder
    name = getattr(recorder, "name", None)
    advice = f"the {name} store has no table for usage" if isinstance(name, str) else ""
    raise InvalidValue(
        "recorder",
        "a function that takes one Usage, or a store that records usage (SQLite, PostgreSQL)",
        recorder,
        advice,
    )
