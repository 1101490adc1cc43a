"""The form for a new recurring job."""

from __future__ import annotations

from msgspec import Struct

from jobmill.dashboard.rules import Written, checked
from jobmill.dashboard.schedules import described, first_of
from jobmill.dashboard.screens.ask_copy import known_names
from jobmill.dashboard.screens.recurring import NEXT
from jobmill.dashboard.view import View


class RecurAddScreen(Struct, frozen=True, kw_only=True):
    """The form for a new recurring job, and what the rule that is written into it would do."""

    cron: str
    every: str
    timezone: str
    #: What is wrong with the rule, by field; empty before one is written.
    errors: dict[str, str]
    #: The rule in words, and its first occurrences; empty if something is wrong.
    schedule: str
    next_ms: list[int]
    tenant: str | None
    #: Names that this process or a worker knows.
    names: list[str]


async def ask_recur_add(view: View) -> RecurAddScreen:
    """The form for a new recurring job; with `cron` or `every`, and `timezone`, what this rule would do."""
    view.require("enqueue")
    view.require("recur_edit")
    # The zone of the browser is the one in which people think of times.
    begins = {"timezone": str(view.zone)}
    written = Written(*(view.typed(field, view.param(field, begins.get(field))).strip() for field in Written._fields))
    errors, rule = checked(written) if written.cron or written.every else ({}, None)
    return RecurAddScreen(
        **written._asdict(),
        errors=errors,
        schedule="" if rule is None else described(rule),
        next_ms=[] if rule is None else first_of(rule, view.now_ms, NEXT),
        tenant=view.access.tenants[0] if view.access.tenants else None,
        names=await known_names(view),
    )
