"""A store cannot decide: it makes no settlement, and repeats no default of the core as a number.

SQL that runs without Python (`jobmill.enqueue`, the triggers of the jobs table) has placeholders, which `migrate` fills
in from the core; tests/stores/test_postgres_defaults.py compares what the database has then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

STORES = "src/jobmill/stores"

#: The end of a path, and a part of a line, whose number means something else and is a default of the core by chance.
OTHER_NUMBERS = (
    ("redis/lua/clean.lua", "ask.limit or 10000"),  # BullMQ's own limit of one clean
    ("redis/lua/lib/claim.lua", "MAX_SCANNED = 1000"),
    ("redis/lua/lib/claim.lua", "ended - now + 1000"),  # a second
    ("redis/lua/depths.lua", "ends - now + 1000"),  # the same
    ("redis/lua/lib/retention.lua", "keep.limit or 1000"),  # BullMQ's own limit of one removal
    ("redis/lua/lib/waiting.lua", "'LIMIT', 0, 1000"),
    ("harmonyk/sql/values.sql", "'10000-01-01"),  # a year
    ("redis/lua/recover.lua", "for last = #ids, 1, -1000"),
)

_NUMBER = re.compile(r"(?<![\w.$?])\d[\d_]*(?![\w.])")
#: Seconds as milliseconds and back.
_CONVERSION = re.compile(r"[*/%]\s*1000\b|\b1000\s*[*/]")
#: Defaults below this occur in statements for other reasons.
SMALLEST = 100


def broken(root: Path) -> Iterator[str]:
    """`path:line: what` for each place."""
    yield from _settlements(root)
    yield from _numbers(root)


def _settlements(root: Path) -> Iterator[str]:
    for path in sorted((root / STORES).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for node in _runtime_imports(tree):
            if node.module == "jobmill.core.values" and any(alias.name == "Settlement" for alias in node.names):
                name = path.relative_to(root).as_posix()
                yield f"{name}:{node.lineno}: import Settlement under TYPE_CHECKING only: the core decides"


def _runtime_imports(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """All `from … import` that run, so none below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom):
            yield node
        yield from _runtime_imports(node)


def _numbers(root: Path) -> Iterator[str]:
    defaults = _defaults()
    for path in sorted((root / "src/jobmill").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix not in (".sql", ".lua") or "migrations" in path.parts:
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            code = _CONVERSION.sub("", line.partition("--")[0])
            for found in _NUMBER.finditer(code):
                value = int(found[0].replace("_", ""))
                if value in defaults and not any(name.endswith(end) and part in line for end, part in OTHER_NUMBERS):
                    yield f"{name}:{number}: {found[0]} is {defaults[value]} of the core: pass it as a parameter"


def _defaults() -> dict[int, str]:
    """Numbers that the core decides, and their names."""
    from jobmill.core import job, limits, payload, retry
    from jobmill.core.values import QueueSettings

    named = {
        job.KEEP_SUCCEEDED.age_ms: "KEEP_SUCCEEDED",
        job.KEEP_FAILED.age_ms: "KEEP_FAILED",
        job.KEEP_RUN.age_ms: "KEEP_RUN",
        job.LOG_LINES_KEPT: "LOG_LINES_KEPT",
        job.ATTEMPTS_KEPT: "ATTEMPTS_KEPT",
        retry.DEFAULT_CAP_MS: "DEFAULT_CAP_MS",
        retry.DEFAULT_MAX_ATTEMPTS: "DEFAULT_MAX_ATTEMPTS",
        limits.MAX_NAME: "MAX_NAME",
        limits.MAX_KEY: "MAX_KEY",
        limits.MAX_PRIORITY: "MAX_PRIORITY",
        payload.MAX_BYTES: "MAX_BYTES",
        QueueSettings().events_max_len: "events_max_len",
    }
    return {number: name for number, name in named.items() if number is not None and number >= SMALLEST}
