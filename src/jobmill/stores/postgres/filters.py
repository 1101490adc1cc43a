"""A Filter as SQL conditions, for live jobs and for final ones."""

from __future__ import annotations

import msgspec

from jobmill.core.job import FINAL, LIVE, STATES
from jobmill.core.values import Filter
from jobmill.stores.common.sql import conditions_of
from jobmill.stores.postgres.statements import Statements

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
            self.add("""jobs.recurrence LIKE '%"declared":true%'""")  # as the partial index has it
        for condition, value in conditions_of(filter):
            self.add(condition, value)
        for column, has in (("recurrence", filter.recurring), ("held", filter.held)):
            if has is not None:
                self.add(f"jobs.{column} IS {'NOT ' if has else ''}NULL")
        if filter.name_prefix is not None:
            self.add("starts_with(jobs.name, {})", filter.name_prefix)
        if filter.error_type is not None:
            part = '"error_type":' + msgspec.json.encode(filter.error_type).decode()
            self.add(
                "strpos(jobs.attempts, {}) > 0 AND {{last_attempt}} ->> 'error_type' = {}", part, filter.error_type
            )
        if filter.payload is not None:
            self._live.append("{newest_live}")
            self._final.append("{newest_final}")
            self.add("{{schema}}.payload_has(jobs.payload, {})", msgspec.json.encode(filter.payload).decode())

    def add(self, condition: str, *values: object) -> None:
        """Add a condition with a `{}` for each parameter."""
        first = self._first + len(self.parameters)
        self.parameters += values
        text = condition.format(*(f"${number}" for number in range(first, first + len(values))))
        self._live.append(text)
        self._final.append(text)

    def into(self, statements: Statements, name: str) -> str:
        """A statement with the conditions in place of {live_where} and {final_where}."""
        text = statements(name).replace("{live_where}", " AND ".join(self._live) or "true")
        return statements.filled(text.replace("{final_where}", " AND ".join(self._final) or "true"))
