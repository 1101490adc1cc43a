"""A Filter as SQL conditions, for live jobs and for final ones."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from jobmill.core.job import FINAL, LIVE, STATES
from jobmill.core.values import Filter
from jobmill.stores.common.sql import conditions_of
from jobmill.stores.postgres.statements import Statements

_PART = re.compile(r"\{([a-z_]+)\}")
# A live job's state follows from its lease. These conditions name the column, so that an index can be used.
_LIVE_STATES = {"waiting": "jobs.lease_until_ms = 0", "running": "jobs.lease_until_ms > 0"}


class PostgresConditions:
    """Conditions and their parameters, numbered from `first` on.

    With `pages`, the caller bounds the number of jobs that are examined; otherwise a filter by payload is applied to
    the newest jobs only. With `trusts`, a payload that is not JSON is an error of the database.
    """

    def __init__(self, filter: Filter, first: int = 1, *, pages: bool = False, trusts: bool = False) -> None:
        self._first = first
        self.parameters: list[object] = []
        wanted = STATES if filter.states is None else filter.states
        live = [_LIVE_STATES[state] for state in LIVE if state in wanted]
        final = [f"'{state}'" for state in FINAL if state in wanted]
        self.has_live, self.has_final = bool(live), bool(final)
        self._live = [f"({' OR '.join(live)})" if live else "false"] if len(live) < len(LIVE) else []
        self._final = [f"jobs.state IN ({', '.join(final)})" if final else "false"] if len(final) < len(FINAL) else []
        if filter.declared:
            self.add("""jobs.recurrence IS NOT NULL AND jobs.recurrence LIKE '%"declared":true%'""")
        # Recurring jobs have an index of their own. Without statistics, the planner might choose the one of due times.
        due = "+jobs.due_ms" if filter.recurring or filter.declared else "jobs.due_ms"
        due = "{{shown_due_ms}}" if "running" in wanted else due
        for condition, value in conditions_of(filter):
            self.add(condition.replace("jobs.due_ms", due), value)
        if filter.unique_key is not None:
            self.add("{{schema}}.key_hash(jobs.unique_key) = {{schema}}.key_hash({})", filter.unique_key)  # in indexes
        for column, has in (("recurrence", filter.recurring), ("held", filter.held)):
            if has is not None:
                self.add(f"jobs.{column} IS {'NOT ' if has else ''}NULL")
        if filter.errored is not None:
            self.add(f"jobs.errors {'>' if filter.errored else '='} 0")
        if filter.name_prefix is not None:
            self.add("starts_with(jobs.name, {})", filter.name_prefix)
        if filter.error_type is not None:
            part = '"error_type":' + msgspec.json.encode(filter.error_type).decode()
            self.add(
                "strpos(jobs.attempts, {}) > 0 AND {{last_attempt}} ->> 'error_type' = {}", part, filter.error_type
            )
        if filter.payload is not None:
            self._add_payload(filter.payload, pages, trusts)

    def _add_payload(self, wanted: dict[str, Any], pages: bool, trusts: bool) -> None:
        if not pages:
            self._live.append("{newest_live}")
            self._final.append("{newest_final}")
        if not trusts:
            self.add("{{schema}}.payload_has(jobs.payload, {})", msgspec.json.encode(wanted).decode())
            return
        for field, value in wanted.items():
            json = msgspec.json.encode(value).decode().replace("\\u0000", "\\ufdd0")
            self.add("{{payload_json}} -> {}::text = {}::text::jsonb", field.replace("\x00", "\ufdd0"), json)

    def text(self, condition: str, *values: object) -> str:
        """A condition with a `{}` for each parameter, as SQL has it."""
        first = self._first + len(self.parameters)
        self.parameters += values
        return condition.format(*(f"${number}" for number in range(first, first + len(values))))

    def add(self, condition: str, *values: object) -> None:
        """Add a condition."""
        text = self.text(condition, *values)
        self._live.append(text)
        self._final.append(text)

    def add_live(self, condition: str) -> None:
        """Add a condition that only live jobs have, without parameters."""
        self._live.append(condition)

    def into(self, statements: Statements, name: str, **parts: str) -> str:
        """A statement with the conditions as {live_where} and {final_where}, and with other parts, which may nest."""
        parts |= {"live_where": " AND ".join(self._live) or "true", "final_where": " AND ".join(self._final) or "true"}
        text, before = statements(name), ""
        while text != before:
            before, text = text, statements.filled(_PART.sub(lambda found: parts.get(found[1], found[0]), text))
        return text
