"""Metering: who is handed the usage of every run, one record at a time or in batches.

A meter is a function of one `Usage`, or anything that keeps many (`RecordsUsage`): the SQLite and PostgreSQL stores do.
It never harms a job: workers hand usage on beside their loops, and what a meter raises is logged and goes no further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from jobmill.core.usage import GLOBAL, RunEnded, Usage
from jobmill.errors import InvalidValue
from jobmill.store import RecordsUsage, Store

__all__ = ["GLOBAL", "Meter", "RecordsUsage", "RunEnded", "Usage", "check_meter"]

#: Which stores keep usage is only known when one is given.
Meter: TypeAlias = Callable[[Usage], Any] | RecordsUsage | Store
M = TypeVar("M", bound=Meter)


def check_meter(meter: M) -> M:
    """The meter, if it is one."""
    if isinstance(meter, RecordsUsage) or callable(meter):
        return meter
    name = getattr(meter, "name", None)
    advice = f"the {name} store has no table for usage" if isinstance(name, str) else ""
    raise InvalidValue(
        "meter", "a function of one Usage, or a store that keeps usage (SQLite, PostgreSQL)", meter, advice
    )
