"""SQL files, filled in for one schema.

In a file `{schema}` stands for the schema, `{channel}` for the channel on which sleeping workers listen, `{lock}` for
the two numbers of an advisory lock, a name of DEFAULTS for a default or limit of the core, and the name of another
statement for its text. A line `-- install x` stands for the file x.
"""

from __future__ import annotations

import functools
import itertools
import re
import zlib
from pathlib import Path

from jobmill.core.due import NEVER_MS
from jobmill.core.flows import MAX_RELEASED
from jobmill.core.job import DAY_MS, KEEP_FAILED, LOG_LINES_KEPT
from jobmill.core.limits import MAX_KEY, MAX_NAME, MAX_PRIORITY
from jobmill.core.payload import MAX_BYTES
from jobmill.core.values import AHEAD, PAYLOADS_SEARCHED, QueueSettings
from jobmill.errors import InvalidValue
from jobmill.handlers.options import DEFAULT_QUEUE
from jobmill.stores.common.sql import literal, quoted, statements_in, without_comments

HERE = Path(__file__).parent

# The first number of our advisory locks ("JobM"); the second number differs by schema.
LOCK_CLASS = 0x4A6F624D

#: How many lanes one statement fills.
LANES_AT_ONCE = 250
#: How many jobs one statement gives slots, or takes slots from, unless it fills many lanes.
MOVED_AT_ONCE = 20_000
#: How many lanes one transaction fills after a change of the rule for all of them.
LANES_REVIEWED = 250
#: When a lane is examined again that had to give up slots, and one in which more jobs run than its limit allows.
REVIEW_SOON_MS = 500
REVIEW_MS = 5_000

#: What functions in the schema repeat of the core, because they also run without Python.
DEFAULTS = {
    "ahead": AHEAD,
    "default_queue": f"'{DEFAULT_QUEUE}'",
    "day_ms": str(DAY_MS),
    "events_max_len": str(QueueSettings().events_max_len),
    "keep_failed_ms": str(KEEP_FAILED.age_ms),
    "log_lines": str(LOG_LINES_KEPT),
    "lanes_reviewed": str(LANES_REVIEWED),
    "max_key": str(MAX_KEY),
    "max_name": str(MAX_NAME),
    "max_payload_bytes": str(MAX_BYTES),
    "max_priority": str(MAX_PRIORITY),
    "max_released": str(MAX_RELEASED),
    "lanes_at_once": str(LANES_AT_ONCE),
    "moved_at_once": str(MOVED_AT_ONCE),
    "never_ms": str(NEVER_MS),
    "payloads_searched": str(PAYLOADS_SEARCHED),
    "review_soon_ms": str(REVIEW_SOON_MS),
    "review_ms": str(REVIEW_MS),
}

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_INSTALL = re.compile(r"^-- install (\w+)$", re.MULTILINE)
_MAX_NAME_BYTES = 63


class Statements:
    """The statements of a folder, for one schema."""

    def __init__(self, schema: str, folder: Path = HERE / "sql", /, **values: str) -> None:
        self.schema = check_schema(schema)
        self.quoted_schema = quoted(schema)
        # A channel is a name, and as long as a name may be.
        self.channel = "jobmill" if schema == "jobmill" else f"jobmill_{zlib.crc32(schema.encode()):08x}"
        self.hints_channel = f"{self.channel}_hints"
        self.lock = f"{LOCK_CLASS}, {zlib.crc32(schema.encode()) - 2**31}"
        self._texts = statements_in(folder)
        own = {"schema": self.quoted_schema, "schema_text": literal(schema), "channel": self.channel, "lock": self.lock}
        own["lane_lock"] = str(zlib.crc32(f"{schema} lanes".encode()) - 2**31)
        self._values = {**DEFAULTS, **own, **values}

    @functools.cache  # noqa: B019  (a store has one, for as long as it lives)
    def __call__(self, name: str) -> str:
        """The statement of this name, without its comments."""
        return self.filled(without_comments(self._texts[name]))

    @functools.cache  # noqa: B019
    def call(self, function: str, parameters: int) -> str:
        """A call of a function of the schema with this number of parameters."""
        numbers = ", ".join(f"${number}" for number in range(1, parameters + 1))
        return f"SELECT * FROM {self.quoted_schema}.{function}({numbers})"

    @functools.cache  # noqa: B019
    def call_for_one(self, function: str, plain: int, types: tuple[str | None, ...]) -> str:
        """A call with plain parameters, and then arrays of one parameter each: of this type, or empty for None."""
        number = itertools.count(1)
        parts = [f"${next(number)}" for _ in range(plain)]
        parts += ["'{}'" if one is None else f"ARRAY[${next(number)}::{one}]" for one in types]
        return f"SELECT * FROM {self.quoted_schema}.{function}({', '.join(parts)})"

    def script(self, name: str) -> str:
        """The file of this name as a script: with its comments, and with the files that it installs."""
        return self.filled(self._texts[name])

    def filled(self, text: str) -> str:
        """SQL with the files that it installs, and with values and statements in place of their names."""
        return _PLACEHOLDER.sub(self._value, _INSTALL.sub(lambda found: self._texts[found[1]].strip(), text))

    def _value(self, found: re.Match[str]) -> str:
        name = found[1]
        if name in self._values:
            return self._values[name]
        # The caller fills in other names, such as {order}.
        return self(name) if name in self._texts else found[0]


def check_schema(schema: str, field: str = "schema") -> str:
    """The name of a schema (or table) that PostgreSQL accepts unchanged, and that is not one of its own."""
    if not schema or len(schema.encode()) > _MAX_NAME_BYTES or "\x00" in schema or schema.lower().startswith("pg_"):
        raise InvalidValue(field, f'a name of 1 to {_MAX_NAME_BYTES} bytes that does not begin with "pg_"', schema)
    if any(sign in "{}$'\\" or not sign.isprintable() for sign in schema):
        raise InvalidValue(field, "a name without {, }, $, quotes, backslashes and control characters", schema)
    return schema
