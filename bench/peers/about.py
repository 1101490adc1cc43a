"""What the report says about a contender beside its figures."""

from __future__ import annotations

import importlib.util

from msgspec import Struct


class About(Struct, frozen=True, kw_only=True):
    """Name, package, and under which conditions its figures came about."""

    name: str
    package: str | None
    settings: str
    #: What becomes of the jobs that ran when the worker is killed with kill -9, beginning with one of three words.
    #: kept: another worker runs them again by itself. repeated: so it does, but because they have run for long, whether
    #: or not their worker lives. lost: nobody runs them again.
    guarantee: str
    #: What was done to know that, where the measure "recovery" alone does not tell.
    tried: str | None = None
    #: The peer's own docs, at the page on performance where there is one.
    docs: str | None = None


def not_installed(package: str) -> str | None:
    """Why a peer in Python cannot be measured; None when it can."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"the package {package} is not installed; `python3 dev.py bench` installs it"
