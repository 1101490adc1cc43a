"""Which jobs an act is for, and what it does to them: the fields of a form as values of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct, structs

from jobmill.core import limits
from jobmill.core.changes import (
    Cancel,
    Change,
    Hold,
    Release,
    Remove,
    Reprioritize,
    Requeue,
    Reschedule,
    states_for,
)
from jobmill.core.due import NOW, Due, after, at
from jobmill.core.durations import instant_ms, to_ms
from jobmill.core.job import LIVE, STATES, State
from jobmill.core.values import Filter
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.search import Search, search_of
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue

#: More are chosen by a search.
MAX_IDS: Final = 1_000


class ActWords(NamedTuple):
    """An act on jobs in words: what the visitor wants, what has happened then, and a change of its kind."""

    wanted: str
    done: str
    kind: Change
    #: What the visitor should know before.
    advice: str | None = None


VERBS: Final[dict[str, ActWords]] = {
    "requeue": ActWords("Requeue", "requeued", Requeue()),
    "cancel": ActWords("Cancel", "cancelled", Cancel(), "The worker of a running job stops it."),
    "remove": ActWords("Remove", "removed", Remove(), "They leave the store. This cannot be undone."),
    "hold": ActWords("Hold", "held", Hold(), "No worker claims them until they are released."),
    "release": ActWords(
        "Release", "released", Release(), "They are due as before, or as they were rescheduled meanwhile."
    ),
    "reschedule": ActWords(
        "Reschedule", "rescheduled", Reschedule(NOW), "A held job gets the time when it is released."
    ),
    "reprioritize": ActWords(
        "Reprioritize", "reprioritized", Reprioritize(0), "Smaller numbers run first. 0 is the default."
    ),
}


class Selection(Struct, frozen=True, kw_only=True):
    """Jobs by id, or all that match a search."""

    ids: list[str] = []
    search: Search | None = None


def selection_of(view: View, ids: list[str], q: str, state: str | None, all: bool) -> Selection:
    """The jobs that a form or a URL names; all that match only if it says so."""
    if ids and all:
        raise InvalidValue("id", "ids, or all=1, not both", len(ids))
    if all:
        return Selection(search=search_of(view, q, state))
    if not ids:
        raise InvalidValue("id", "the id of a job, or several, or all=1 for all that match", "nothing")
    if len(ids) > MAX_IDS:
        raise InvalidValue("id", f"at most {MAX_IDS:,} ids", len(ids), "choose all that match a search instead")
    return Selection(ids=[limits.check_known_id(id) for id in dict.fromkeys(ids)])


class FlowAct(NamedTuple):
    """An act on a flow: the act on jobs that it is, and the states from which it changes jobs."""

    verb: str
    states: tuple[State, ...]


FLOW_ACTS: Final[dict[str, FlowAct]] = {
    "flow_retry": FlowAct("requeue", ("failed", "cancelled")),
    "flow_cancel": FlowAct("cancel", LIVE),
}


def words_for(act: str) -> ActWords:
    """An act on jobs or on a flow in words."""
    return VERBS[FLOW_ACTS[act].verb if act in FLOW_ACTS else act]


def flow_filter(view: View, id: str, tenant: str | None) -> Filter:
    """The jobs of a flow that the visitor may see."""
    return view.limited(Filter(flow=id, tenant=tenant))


def change_of(act: str, view: View, fields: Fields) -> Change:
    """The change that the fields of a form describe."""
    match VERBS[act].kind:
        case Hold():
            return Hold(who=view.who, note=note_of(fields))
        case Reschedule():
            return Reschedule(_due_of(view, fields))
        case Reprioritize():
            priority = fields.optional_int("priority")
            if priority is None:
                raise InvalidValue("priority", "a whole number, for example 2", "nothing")
            return Reprioritize(limits.check_priority(priority))
        case change:
            return change


def note_of(fields: Fields) -> str | None:
    """The note for the audit log."""
    note = fields.optional("note")
    return None if note is None else limits.check_note(note)


def spread_of(fields: Fields) -> int:
    """Over how many milliseconds a requeue is spread: `spread_own`, or else `spread`."""
    field = "spread" if fields.optional("spread_own") is None else "spread_own"
    return to_ms(fields.duration(field, "0s"), field)


def _due_of(view: View, fields: Fields) -> Due:
    if (fields.optional("delay") is None) == (fields.optional("due_at") is None):
        raise InvalidValue("due_at", "a delay, for example 10m, or a time, and not both", "both or nothing")
    if fields.optional("delay") is not None:
        return after(to_ms(fields.duration("delay"), "delay"))
    given = fields.instant_or_duration("due_at", view.zone)
    if given is None or isinstance(given, str):
        raise InvalidValue("due_at", "a time, for example 2026-11-16T15:00", given)
    return at(instant_ms(given, "due_at"))


def candidates(change: Change, wanted: Filter) -> Filter:
    """The jobs that match and that the change may be possible for."""
    states = states_for(change, wanted)
    if not isinstance(change, Release):
        return structs.replace(wanted, states=states)
    return structs.replace(wanted, states=() if wanted.held is False else states, held=True)


def left_out(change: Change, wanted: Filter) -> dict[str, Filter]:
    """The jobs that match and that no change is tried for, by the reason."""
    allowed = states_for(change, wanted)
    others = tuple(
        state for state in STATES if state not in allowed and (wanted.states is None or state in wanted.states)
    )
    found = {f"the job is {_or(others)}": structs.replace(wanted, states=others)} if others else {}
    if isinstance(change, Release) and wanted.held is not True and allowed:
        found["the job is not held"] = structs.replace(wanted, states=allowed, held=False)
    return found


def _or(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def chips_of(search: Search) -> list[str]:
    """The words of a search, the tenant to which the visitor is limited, and the tab."""
    tenant = search.filter.tenant
    limit = [] if tenant is None or any(chip.startswith("tenant:") for chip in search.chips) else [f"tenant:{tenant}"]
    return [*search.chips, *limit, *([] if search.state == "all" else [f"state:{search.state}"])]


def jobs_text(many: int | None, state: str = "all", *, is_cut: bool = False) -> str:
    """A number of jobs in words, such as 8,220 failed jobs."""
    number = "" if many is None else f"{many:,}{'+ ' if is_cut else ' '}"
    kind = "" if state in ("all", "later") else f"{state} "
    return f"{number}{kind}{'job' if many == 1 else 'jobs'}{' due later' if state == 'later' else ''}"
