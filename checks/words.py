"""Plain English: words and phrases that readers stumble over do not occur where people read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PHRASES = (
    *("so many", "so often", "in vain", "to be had", "besides", "whoever", "lets us in", "it goes on"),
    *("looked at", "was told", "as said"),
)
_PHRASE = re.compile(r"\b(" + "|".join(phrase.replace(" ", r"\s+") for phrase in PHRASES) + r")\b", re.IGNORECASE)
_CONSTANT = re.compile(r"\b(MOST|LEAST)_[A-Z]\w*")

FOLDERS = ("src", "docs", "examples")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "UPGRADING.md")
ENDINGS = (".py", ".md", ".sql", ".lua")

#: Places that need such a word: the end of a path, and a part of the line.
ALLOWED: tuple[tuple[str, str], ...] = ()


def broken(root: Path) -> Iterator[str]:
    """`path:line: what` for each occurrence."""
    for path in _texts(root):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for found in (*_PHRASE.finditer(line), *_CONSTANT.finditer(line)):
                if not any(name.endswith(end) and part in line for end, part in ALLOWED):
                    yield f"{name}:{number}: {found[0]!r}: say it in plain English (CONTRIBUTING.md)"


def _texts(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted(path for path in (root / folder).rglob("*") if path.suffix in ENDINGS)
    yield from (root / name for name in FILES if (root / name).exists())
