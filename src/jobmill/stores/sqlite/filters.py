"""A Filter as SQL conditions."""

from __future__ import annotations

from jobmill.core.job import STATES, State
from jobmill.core.values import Filter

_CONDITIONS = {
    "queue": "jobs.queue = ?",
    "name": "jobs.name = ?",
    "tenant": "jobs.tenant = ?",
    "unique_key": "jobs.unique_key = ?",
    "created_after_ms": "jobs.created_ms >= ?",
    "created_before_ms": "jobs.created_ms < ?",
    "due_after_ms": "jobs.due_ms >= ?",
    "due_before_ms": "jobs.due_ms < ?",
    "finished_after_ms": "jobs.finished_ms >= ?",
    "finished_before_ms": "jobs.finished_ms < ?",
}


def wanted_states(filter: Filter) -> list[State]:
    """The states that a filter matches, in their order."""
    return [state for state in STATES if filter.states is None or state in filter.states]


def conditions(filter: Filter) -> tuple[str, list[object]]:
    """A condition and its parameters. States are literals: the planner needs them to use the partial indexes."""
    states = wanted_states(filter)
    terms: list[str] = []
    if len(states) < len(STATES):
        terms.append("(" + (" OR ".join(f"jobs.state = '{state}'" for state in states) or "false") + ")")
    parameters: list[object] = []
    for field, condition in _CONDITIONS.items():
        value = getattr(filter, field)
        if value is not None:
            terms.append(condition)
            parameters.append(value)
    return " AND ".join(terms) or "true", parameters
