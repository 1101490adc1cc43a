"""A Filter as SQL conditions."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from jobmill.core.due import NEVER_MS
from jobmill.core.job import STATES, State
from jobmill.core.values import EVERYTHING, PAYLOADS_SEARCHED, Filter, Order
from jobmill.stores.common.sql import conditions_of
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.statements import sql


def wanted_states(filter: Filter) -> list[State]:
    """The states that a filter matches, in their order."""
    return [state for state in STATES if filter.states is None or state in filter.states]


def searched_after(context: SqliteContext, filter: Filter) -> int:
    """The seq after which a filter searches: a filter by payload, which reads each job, ends at the newest ones."""
    row = None if filter.payload is None else context.row("oldest_searched", (PAYLOADS_SEARCHED,))
    return row[0] if row else 0


def index_of_few(filter: Filter) -> str | None:
    """The index that has few jobs among many, where a filter asks for them."""
    if filter.unique_key is not None:
        return "jobmill_keyed"
    if filter.flow is not None:
        return "jobmill_flow"
    if filter.lane is not None:
        return "jobmill_of_lane"
    return "jobmill_declared" if filter.declared else "jobmill_recurring" if filter.recurring else None


def filtered(name: str, filter: Filter, after: int = 0) -> tuple[str, list[object]]:
    """A statement about jobs that match, and the parameters of its conditions."""
    where, parameters = conditions(filter, after)
    # Without statistics, the planner may prefer the index of a queue and state, which may have many jobs.
    index = index_of_few(filter)
    indexed = "" if index is None else f"INDEXED BY {index}"
    return sql(name).replace("{indexed}", indexed).replace("{conditions}", where), parameters


def split(filter: Filter, order: Order) -> tuple[Filter, Filter]:
    """The part of a filter that the index ranges of an order answer, and the rest, for which each job is read.

    Queue and name are in neither part where they choose the index ranges.
    """
    if order == "own":
        indexed = Filter(held=True) if filter.held else EVERYTHING
    elif order == "longest":
        indexed = structs.replace(EVERYTHING, states=filter.states, queue=filter.queue, name=filter.name)
    elif order == "claim":
        due = (filter.due_after_ms, filter.due_before_ms)
        indexed = Filter(states=filter.states, held=filter.held or None, due_after_ms=due[0], due_before_ms=due[1])
    else:
        times = (filter.finished_after_ms, filter.finished_before_ms)
        indexed = Filter(states=filter.states, finished_after_ms=times[0], finished_before_ms=times[1])
    answered = {field for field in Filter.__struct_fields__ if getattr(indexed, field) not in (None, False)}
    if order in ("claim", "latest"):
        answered |= {"queue", "name", "name_prefix"}
    rest = {field: getattr(filter, field) for field in Filter.__struct_fields__ if field not in answered}
    return indexed, Filter(**rest)


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
    if filter.errored is not None:
        terms.append("jobs.errors > 0" if filter.errored else "jobs.errors = 0")
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
