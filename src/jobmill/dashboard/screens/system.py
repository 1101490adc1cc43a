"""The system: what the checks of `jobmill doctor` say, and facts about the store and this dashboard."""

from __future__ import annotations

import platform
import time

import msgspec
from msgspec import Struct

from jobmill._version import __version__
from jobmill.core.findings import Finding, StoreFacts, facts_of
from jobmill.dashboard.view import View


class SystemStore(Struct, frozen=True, kw_only=True):
    """What is known about the store."""

    kind: str
    #: Without secrets.
    address: str
    #: How far the clock of the dashboard's machine is ahead of the clock of the store.
    clock_skew_ms: int
    #: As the last checks found it; None before the first ones have ended.
    facts: StoreFacts | None
    jobs: StoredJobs | None


class StoredJobs(Struct, frozen=True, kw_only=True):
    """How many jobs the store has. A count stops at 10,000 for each queue and state; then `exact` is false."""

    live: int
    final: int
    exact: bool


class SystemScreen(Struct, frozen=True, kw_only=True):
    """The findings by level, and facts. Nothing here repairs anything."""

    errors: list[Finding]
    warnings: list[Finding]
    fine: list[Finding]
    #: How old the findings are: they are shared for 30 s. None: there are none yet.
    checked_ms_ago: int | None
    #: Whether checks run now, whose findings are not here yet.
    is_checking: bool
    store: SystemStore
    version: str
    python: str
    #: How many tabs get live updates.
    tabs: int
    mounted_at: str


async def system(view: View) -> SystemScreen:
    """All findings, problems first. A page does not wait for slow checks; for a program they are the answer."""
    checked = await (view.reads.checked() if view.wants_json else view.reads.last_checked())
    findings = checked.findings if checked is not None else []
    by_level = {level: [one for one in findings if one.level == level] for level in ("error", "warning", "ok")}
    store = view.jobs.store
    return SystemScreen(
        errors=by_level["error"],
        warnings=by_level["warning"],
        fine=by_level["ok"],
        checked_ms_ago=None if checked is None else view.reads.age_ms(checked),
        is_checking=view.reads.is_checking(),
        store=SystemStore(
            kind=view.dashboard.store_name,
            address=store.address,
            clock_skew_ms=round(time.time() * 1000) - store.now(),
            facts=facts_of(findings),
            jobs=next((msgspec.convert(one.evidence, StoredJobs) for one in findings if one.check == "jobs"), None),
        ),
        version=__version__,
        python=platform.python_version(),
        tabs=view.dashboard.live.tabs,
        mounted_at=f"{view.base}/",
    )
