"""A Filter as SQL conditions."""

from __future__ import annotations

from jobmill.core.job import STATES, State
from jobmill.core.values import Filter
from jobmill.stores.common.sql import conditions_of


def wanted_states(filter: Filter) -> list[State]:
    """The states that a filter matches, in their order."""
    return [state for state in STATES if filter.states is None or state in filter.states]


def conditions(filter: Filter) -> tuple[str, list[object]]:
    """A condition and its parameters. States are literals: the planner needs them to use the partial indexes."""
    states = wanted_states(filter)
    terms: list[str] = []
    if len(states) < len(STATES):
        terms.append("(" + (" OR ".join(f"jobs.state = '{state}'" for state in states) or "false") + ")")
    if filter.declared:
        terms.append("""instr(jobs.recurrence, '"declared":true') > 0""")  # as the partial index has it
    parameters: list[object] = []
    for condition, value in conditions_of(filter):
        terms.append(condition.format("?"))
        parameters.append(value)
    return " AND ".join(terms) or "true", parameters
