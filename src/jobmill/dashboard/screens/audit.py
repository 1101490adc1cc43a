"""The audit log: who changed what, and when."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from jobmill.core.audit import AuditEntry, AuditFilter
from jobmill.core.durations import instant_ms, to_ms
from jobmill.core.tallies import MINUTE_MS
from jobmill.dashboard.view import PAGE, View
from jobmill.errors import InvalidValue

#: What entries can be searched by: each is a query parameter, and a word "who:ada" of the text field.
QUALIFIERS: Final = ("who", "what", "queue", "job", "since")


class ListedAct(Struct, frozen=True, kw_only=True):
    """One act of a person or of code."""

    id: str
    at_ms: int
    who: str
    what: str
    #: The queue and the filter that it was about, as short texts: "queue:mail", "state:failed".
    which: list[str]
    #: At most 100 of the jobs (or workers) that were changed.
    ids: list[str]
    count: int
    note: str | None


class AuditScreen(Struct, frozen=True, kw_only=True):
    """One page of the audit log, newest first."""

    #: The filters, as the text field has them.
    q: str
    entries: list[ListedAct]
    #: The cursor of the next page.
    next: str | None


async def audit(view: View) -> AuditScreen:
    """Entries that match `who`, `what`, `queue`, `job` and `since` (a time, or how long ago)."""
    given = _given(view)
    wanted = AuditFilter(
        who=given.get("who"),
        what=None if "what" not in given else given["what"].replace(" ", "_"),
        queue=given.get("queue"),
        job_id=given.get("job"),
        after_ms=_since_ms(given["since"], view) if "since" in given else None,
    )
    page = await view.reads.audit_log(wanted, view.param("cursor"), PAGE)
    return AuditScreen(
        q=" ".join(f"{name}:{shlex.quote(value)}" for name, value in given.items()),
        entries=[_act(entry, view) for entry in page.entries],
        next=page.next,
    )


def _given(view: View) -> dict[str, str]:
    given = {name: value for name in QUALIFIERS if (value := view.param(name)) is not None}
    q = view.param("q") or ""
    try:
        words = shlex.split(q)
    except ValueError as error:
        raise InvalidValue("q", "words such as who:ada, with quotation marks in pairs", q, str(error)) from None
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or name not in QUALIFIERS or not value:
            raise InvalidValue("q", "words such as " + ", ".join(f"{one}:…" for one in QUALIFIERS), word)
        given[name] = value
    return given


def _since_ms(text: str, view: View) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        since_ms = view.now_ms - to_ms(text, "since")
    else:
        since_ms = instant_ms(at if at.tzinfo is not None else at.replace(tzinfo=view.zone), "since")
    # Whole minutes: tabs that ask at about the same time share an answer.
    return max(0, since_ms - since_ms % MINUTE_MS)


def _act(entry: AuditEntry, view: View) -> ListedAct:
    return ListedAct(
        id=entry.id,
        at_ms=entry.at_ms,
        who=entry.who,
        what=entry.what,
        which=_chips(entry, view),
        ids=list(entry.ids),
        count=entry.count,
        note=entry.note,
    )


def _chips(entry: AuditEntry, view: View) -> list[str]:
    found = [] if entry.queue is None else [f"queue:{entry.queue}"]
    for field, value in (entry.filter or {}).items():
        if field == "payload" and isinstance(value, dict):
            found += [f"payload.{key}:{one}" for key, one in view.payload(value).items()]
        elif field != "queue" or entry.queue is None:
            found.append(_chip(field, value, view))
    return found


def _chip(field: str, value: Any, view: View) -> str:
    if field.endswith("_ms") and isinstance(value, int):
        return f"{field.removesuffix('_ms')}:{view.clock(value)}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{'state' if field == 'states' else field}:{text}"
