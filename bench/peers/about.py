"""What the report says about a contender beside its figures."""

from __future__ import annotations

from msgspec import Struct


class About(Struct, frozen=True, kw_only=True):
    """Name, package, and under which conditions its figures came about."""

    name: str
    package: str | None
    settings: str
    #: What becomes of the jobs that ran when the worker is killed with kill -9.
    guarantee: str
