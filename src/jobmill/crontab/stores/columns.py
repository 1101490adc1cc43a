"""The columns of a user's table that make its rows jobs, and how SQL quotes their names."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from msgspec import UNSET, Struct

from jobmill.crontab.job import Changes, CrontabJob
from jobmill.errors import InvalidValue


class TableColumns(Struct, frozen=True, kw_only=True):
    """The names of the columns; None if the table has no such column."""

    id: str
    sleep_until: str
    interval: str | None
    repeat_until: str | None
    auto_remove: str | None

    def __post_init__(self) -> None:
        """Refuse invalid names."""
        for field in self.__struct_fields__:
            name = getattr(self, field)
            if name is not None or field in ("id", "sleep_until"):
                quoted(name, field)

    def job(self, row: Mapping[str, Any], read: Callable[[str, Any], Any], **more: Any) -> CrontabJob:
        """A row as a job; `read` converts the value of a column."""

        def value(kind: str) -> Any:
            name = getattr(self, kind)
            return None if name is None else read(kind, row[name])

        return CrontabJob(
            id=row[self.id],
            sleep_until=value("sleep_until"),
            interval=value("interval"),
            repeat_until=value("repeat_until"),
            auto_remove=bool(value("auto_remove")),
            data=dict(row),
            **more,
        )

    def check(self, names: Container[str], table: str) -> None:
        """InvalidValue if a column is not one of these names."""
        for field in self.__struct_fields__:
            name = getattr(self, field)
            if name is not None and name not in names:
                advice = "give the name of the column" if field in ("id", "sleep_until") else "give its name, or None"
                raise InvalidValue(field, f"a column of {table}", name, advice)

    def fields(self, changes: Changes) -> dict[str, Any]:
        """The values to set, by column."""
        found: dict[str, Any] = {}
        if changes.sleep_until is not UNSET:
            found[self.sleep_until] = changes.sleep_until
        if changes.auto_remove is not UNSET:
            if self.auto_remove is None:
                raise InvalidValue("auto_remove", "no value, because the table has no such column", changes.auto_remove)
            found[self.auto_remove] = changes.auto_remove
        return found


def quoted(name: object, field: str) -> str:
    """A quoted name for SQL."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidValue(field, "a name", name)
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: object) -> str:
    """A quoted `table` or `schema.table`."""
    parts = table.split(".") if isinstance(table, str) else []
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise InvalidValue("table", "the name of a table, or schema.table", table)
    return ".".join(quoted(part, "table") for part in parts)


def condition(where: object) -> str:
    """The user's SQL as another condition."""
    if where is None:
        return ""
    if not isinstance(where, str) or not where.strip():
        raise InvalidValue("where", "a condition in SQL, such as kind = 'mail'", where)
    # The line break ends a comment, which would hide the bracket.
    return f" AND ({where}\n)"
