"""The columns of a user's table that make its rows jobs, and how SQL quotes their names."""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime
from typing import Any

from msgspec import Struct

from jobmill.crontab.job import CrontabJob
from jobmill.crontab.stores import rows
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

    def job(self, row: dict[str, Any], date: Callable[[Any], Any], locked_until: datetime) -> CrontabJob:
        """A row as a job; `date` converts the value of a date column."""

        def value(column: str | None) -> Any:
            return None if column is None else row[column]

        return rows.job(
            row[self.id],
            sleep_until=date(row[self.sleep_until]),
            interval=value(self.interval),
            repeat_until=date(value(self.repeat_until)),
            auto_remove=value(self.auto_remove),
            data=row,
            locked_until=locked_until,
        )

    def check(self, names: Container[str], table: str) -> None:
        """InvalidValue if a column is not one of these names."""
        for field in self.__struct_fields__:
            name = getattr(self, field)
            if name is not None and name not in names:
                advice = "give the name of the column" if field in ("id", "sleep_until") else "give its name, or None"
                raise InvalidValue(field, f"a column of {table}", name, advice)

    def flag(self, value: object) -> str:
        """The quoted column of auto_remove, for this value; InvalidValue if the table has no such column."""
        if self.auto_remove is None:
            raise InvalidValue("auto_remove", "no value, because the table has no such column", value)
        return quoted(self.auto_remove, "auto_remove")


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
