"""The SQL files beside this module, for one schema.

In a file `{schema}` stands for the schema, `{channel}` for the name that sleeping workers listen to, `{lock}` for the
two numbers of an advisory lock, `{name of another file}` for what that file says.
"""

from __future__ import annotations

import functools
import re
import zlib
from pathlib import Path

from jobmill.core.job import KEEP_FAILED, LOG_LINES_KEPT
from jobmill.errors import InvalidValue

HERE = Path(__file__).parent

# The first number of our advisory locks ("JobM"); the second tells schemas apart.
LOCK_CLASS = 0x4A6F624D

_PLACE = re.compile(r"\{([a-z_]+)\}")
_INSTALL = re.compile(r"^-- install (\w+)$", re.MULTILINE)
_LONGEST = 63


class Statements:
    """All statements of the store, for one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = check_schema(schema)
        # A channel is a name, and as long as one may be.
        self.channel = "jobmill" if schema == "jobmill" else f"jobmill_{zlib.crc32(schema.encode()):08x}"
        self.lock = f"{LOCK_CLASS}, {zlib.crc32(schema.encode()) - 2**31}"

    @functools.cache  # noqa: B019  (a store has one, for as long as it lives)
    def __call__(self, name: str) -> str:
        """The statement of sql/<name>.sql, without its comments."""
        text = (HERE / "sql" / f"{name}.sql").read_text("utf-8")
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
        return self._filled("\n".join(lines).strip())

    def migration(self, file: Path) -> str:
        """The script of a migration, with all comments and with the functions that it installs."""
        text = _INSTALL.sub(lambda found: self._file(found[1]), file.read_text("utf-8"))
        return self._filled(text)

    def script(self, name: str) -> str:
        """The same of sql/<name>.sql."""
        return self.migration(HERE / "sql" / f"{name}.sql")

    def _file(self, name: str) -> str:
        return (HERE / "sql" / f"{name}.sql").read_text("utf-8").strip()

    def _filled(self, text: str) -> str:
        return _PLACE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        known = {
            "schema": quoted(self.schema),
            "schema_text": literal(self.schema),
            "channel": self.channel,
            "lock": self.lock,
            "log_lines": str(LOG_LINES_KEPT),
            "keep_failed_ms": str(KEEP_FAILED.age_ms),
        }
        if found[1] in known:
            return known[found[1]]
        # What is no file is for whoever uses the statement: {order}.
        return self(found[1]) if (HERE / "sql" / f"{found[1]}.sql").exists() else found[0]


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL writes it, whatever standard_conforming_strings says."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'" if "\\" not in text else "E'" + escaped.replace("\\", "\\\\") + "'"


def check_schema(schema: str, field: str = "schema") -> str:
    """The name of a schema (or table) that PostgreSQL takes as it is, and that is not one of its own."""
    if not schema or len(schema.encode()) > _LONGEST or "\x00" in schema or schema.lower().startswith("pg_"):
        raise InvalidValue(field, f'a name of 1 to {_LONGEST} bytes that does not begin with "pg_"', schema)
    if any(sign in "{}$'\\" or not sign.isprintable() for sign in schema):
        raise InvalidValue(field, "a name without {, }, $, quotes, backslashes and control characters", schema)
    return schema
