"""What the report says about a contender beside its figures."""

from __future__ import annotations

import importlib.util

from msgspec import Struct


class About(Struct, frozen=True, kw_only=True):
    """Name, package, and under which conditions its figures came about."""

    name: str
    package: str | None
    settings: str
    #: What becomes of the jobs that ran when the worker is killed with kill -9.
    guarantee: str


def not_installed(package: str) -> str | None:
    """Why a peer in Python cannot be measured; None when it can."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"the package {package} is not installed; `python3 dev.py bench` installs it"
