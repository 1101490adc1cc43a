"""A Filter as SQL conditions, for live jobs and for final ones."""

from __future__ import annotations

from jobmill.core.job import FINAL, LIVE, STATES
from jobmill.core.values import Filter
from jobmill.stores.common.sql import conditions_of

# A live job's state follows from its lease. These conditions name the column, so that an index can be used.
_LIVE_STATES = {"waiting": "jobs.lease_until_ms = 0", "running": "jobs.lease_until_ms > 0"}


class PostgresConditions:
    """Conditions and their parameters, numbered from `first` on."""

    def __init__(self, filter: Filter, first: int = 1) -> None:
        self._first = first
        self.parameters: list[object] = []
        wanted = STATES if filter.states is None else filter.states
        live = [_LIVE_STATES[state] for state in LIVE if state in wanted]
        final = [f"'{state}'" for state in FINAL if state in wanted]
        self.has_live, self.has_final = bool(live), bool(final)
        self._live = [f"({' OR '.join(live)})" if live else "false"] if len(live) < len(LIVE) else []
        self._final = [f"jobs.state IN ({', '.join(final)})" if final else "false"] if len(final) < len(FINAL) else []
        if filter.declared:
            declared = """jobs.recurrence LIKE '%"declared":true%'"""  # as the partial index has it
            self._live.append(declared)
            self._final.append(declared)
        for condition, value in conditions_of(filter):
            self.add(condition, value)

    def add(self, condition: str, value: object) -> None:
        """Add a condition with one parameter, `{}`."""
        self.parameters.append(value)
        text = condition.format(f"${self._first + len(self.parameters) - 1}")
        self._live.append(text)
        self._final.append(text)

    def into(self, statement: str) -> str:
        """A statement with the conditions in place of {live_where} and {final_where}."""
        return statement.replace("{live_where}", " AND ".join(self._live) or "true").replace(
            "{final_where}", " AND ".join(self._final) or "true"
        )
