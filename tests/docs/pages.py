"""The documentation as data: its pages, their blocks, tables and links; and how the blocks of Python are run.

The convention, by what stands behind the three backticks:

    python                  runs, after the blocks above it, in one namespace per page; `await` may stand at the top
                            level, and functions named test_* are called when their block has run
    python no-run           is only compiled
    python file=NAME.py     is written to that file, from which later blocks may import
    sql                     runs on a PostgreSQL database of the page's own, whose URL is in DATABASE_URL from its start
    sql no-run              is only shown
    js                      runs on Node to its end, with BullMQ installed
    js background           runs on Node until the page ends
    redis                   is only shown: what one types into redis-cli, or writes into redis.conf
    console                 lines that begin with "$ jobmill" are parsed as the command line would parse them

A page runs in an empty working directory without JOBMILL_URL, so that `jobmill.connect()` makes its file there. One
that has REDIS_URL in its blocks finds an empty database of a Redis there.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobmill import Client
from tests.docs.node import Scripts

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_CELL_BORDER = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Block:
    """What stands between two fences; `line` is that of its first line."""

    page: Path
    line: int
    language: str
    how: str
    code: str

    def __str__(self) -> str:
        """Where it is."""
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is written to."""
        return self.how.removeprefix("file=") if self.how.startswith("file=") else None


def blocks(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, _, how = match["info"].strip().partition(" ")
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(page, line, language, how.strip(), match["code"]))
    return found


def without_blocks(page: Path) -> str:
    """A page's text without its blocks."""
    return _FENCE.sub("", page.read_text())


def prose(page: Path) -> str:
    """A page's text without its blocks and code spans."""
    return _SPAN.sub("", without_blocks(page))


def spans(text: str) -> list[str]:
    """What stands in single backticks."""
    return _SPAN.findall(text)


def headings(page: Path) -> list[str]:
    """All headings of a page."""
    return [match[2] for match in _HEADING.finditer(without_blocks(page))]


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above; blocks included."""
    text = page.read_text()
    start = next(match for match in _HEADING.finditer(text) if match[2] == heading)
    behind = [match for match in _HEADING.finditer(text, start.end()) if len(match[1]) <= len(start[1])]
    return text[start.end() : behind[0].start() if behind else len(text)]


def table(page: Path, heading: str, first_column: str) -> list[dict[str, str]]:
    """The rows, by column, of the table under a heading whose first column is named so."""
    lines = iter(section(page, heading).splitlines())
    columns: list[str] = next(cells for line in lines if (cells := _cells(line))[:1] == [first_column])
    next(lines)  # the rule below the columns
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(columns, _cells(line), strict=True)))
    return rows


def _cells(line: str) -> list[str]:
    if not line.startswith("|"):
        return []
    return [cell.strip() for cell in _CELL_BORDER.split(line.strip())[1:-1]]


def code_of(cell: str) -> str:
    """The code that a cell consists of."""
    (code,) = spans(cell)
    return code


class Example:
    """One page, run block by block in a directory of its own."""

    def __init__(self, page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delenv("JOBMILL_URL", raising=False)
        self._folder = folder
        self._monkeypatch = monkeypatch
        name = "docs_" + page.stem.lower().replace("-", "_")
        # A module, so that classes which a block defines are found where they say that they are.
        self._module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, self._module)
        self.namespace = vars(self._module)
        self._files: list[str] = []
        #: Where the page has JavaScript to run.
        self.scripts: Scripts | None = None

    async def run(self, block: Block) -> None:
        """Do with the block what its fence says."""
        if block.file is not None:
            (self._folder / block.file).write_text(block.code)
            self._files.append(block.file.removesuffix(".py"))
            return
        if block.language == "js":
            await self._run_script(block)
            return
        code = compiled(block) if block.language == "python" else None
        if block.how == "no-run":
            return
        assert block.how == "", f"{block}: what is `{block.how}`?"
        if block.language == "sql":
            await _executed(block)
            return
        known = set(self.namespace)
        await self.evaluate(code)
        for name in [name for name in self.namespace if name not in known and name.startswith("test_")]:
            await _awaited(self.namespace[name]())

    async def _run_script(self, block: Block) -> None:
        assert self.scripts is not None
        assert block.how in ("", "background"), f"{block}: what is `{block.how}`?"
        if block.how == "background":
            await self.scripts.begin(block.code)
        else:
            await self.scripts.run(str(block), block.code)

    async def evaluate(self, code: Any) -> Any:
        """Run compiled code, or an expression as text, in the page's namespace."""
        return await _awaited(eval(code, self.namespace))

    async def close(self) -> None:
        """Close every client that the page has made, and forget its modules."""
        for client in self._clients():
            if client._sync is not None:
                await asyncio.to_thread(client.sync.close)
            await client.close()
        for name in self._files:
            sys.modules.pop(name, None)
        if self.scripts is not None:
            await self.scripts.close()

    def _clients(self) -> Iterator[Client]:
        for module in (self._module, *(sys.modules.get(name) for name in self._files)):
            yield from (value for value in vars(module or object).values() if isinstance(value, Client))


def needs_database(page: Path) -> bool:
    """Whether a page has SQL to run."""
    return any(block.language == "sql" and block.how == "" for block in blocks(page))


def needs_redis(page: Path) -> bool:
    """Whether a page has something to run on Redis."""
    return any("REDIS_URL" in block.code for block in blocks(page) if block.language in ("python", "js"))


def needs_mongo(page: Path) -> bool:
    """Whether a page has something to run on MongoDB."""
    return any("MONGO_URL" in block.code for block in blocks(page) if block.language in ("python", "js"))


def needs_node(page: Path) -> bool:
    """Whether a page has JavaScript to run."""
    return any(block.language == "js" for block in blocks(page))


async def _executed(block: Block) -> None:
    from tests.kit.postgres import connected

    async with connected(os.environ["DATABASE_URL"]) as connection:
        await connection.execute(block.code)


def compiled(block: Block) -> Any:
    """The code of a block; tracebacks show the page and its line numbers."""
    source = "\n" * (block.line - 1) + block.code
    return compile(source, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
