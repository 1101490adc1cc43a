"""A Filter as SQL conditions."""

from __future__ import annotations

from collections.abc import Iterator

from jobmill.core.due import NEVER_MS
from jobmill.core.job import STATES, State
from jobmill.core.values import PAYLOADS_SEARCHED, Filter
from jobmill.stores.common.sql import conditions_of
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext


def wanted_states(filter: Filter) -> list[State]:
    """The states that a filter matches, in their order."""
    return [state for state in STATES if filter.states is None or state in filter.states]


def searched_after(context: SqliteContext, filter: Filter) -> int:
    """The seq after which a filter searches: a filter by payload, which reads each job, ends at the newest ones."""
    row = None if filter.payload is None else context.row("oldest_searched", (PAYLOADS_SEARCHED,))
    return row[0] if row else 0


def conditions(filter: Filter, after: int = 0) -> tuple[str, list[object]]:
    """A condition and its parameters. States are literals: the planner needs them to use the partial indexes."""
    states = wanted_states(filter)
    terms: list[str] = []
    if len(states) < len(STATES):
        terms.append("(" + (" OR ".join(f"jobs.state = '{state}'" for state in states) or "false") + ")")
    if filter.declared:
        terms.append("""instr(jobs.recurrence, '"declared":true') > 0""")  # as the partial index has it
    if filter.held is not None:
        held = f"jobs.held IS NOT NULL AND jobs.due_ms = {NEVER_MS}"
        terms.append(held if filter.held else f"NOT ({held})")
    if filter.recurring is not None:
        terms.append("jobs.recurrence IS NOT NULL" if filter.recurring else "jobs.recurrence IS NULL")
    parameters: list[object] = []
    for condition, value in [*conditions_of(filter), *_conditions_of_content(filter, after)]:
        terms.append(condition.format("?"))
        parameters.append(value)
    return " AND ".join(terms) or "true", parameters


def _conditions_of_content(filter: Filter, after: int) -> Iterator[tuple[str, object]]:
    if filter.name_prefix is not None:
        yield "instr(jobs.name, {}) = 1", filter.name_prefix
    if filter.error_type is not None:
        yield (
            "CASE WHEN json_valid(jobs.attempts) THEN json_extract(jobs.attempts, '$[#-1].error_type') END = {}",
            filter.error_type,
        )
    if after:
        yield "jobs.seq > {}", after
    if filter.payload is not None:
        large = "SELECT large.payload FROM jobmill_payloads AS large WHERE large.seq = jobs.seq"
        # A blob, because text that is not UTF-8 would raise an error.
        yield f"payload_matches(CAST(coalesce(jobs.payload, ({large})) AS BLOB), {{}})", as_json(filter.payload)
