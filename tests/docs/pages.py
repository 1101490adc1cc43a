"""The documentation as data: its pages with their blocks, tables and links; and how their blocks run.

The text after the three backticks decides what the tests do with a block:

    python                  runs, after the blocks above it, in one namespace per page; it may use `await` at the top
                            level, and functions named test_* are called when their block has run
    python no-run           is only compiled
    python file=NAME.py     is written to that file, from which later blocks may import
    python append=NAME.py   is added to the end of that file
    sql                     runs in a PostgreSQL database for this page; DATABASE_URL has its URL
    sql no-run              is only shown
    js                      runs on Node to its end, with BullMQ installed
    js background           runs on Node until the page ends
    js no-run               is only parsed, by `node --check`
    redis                   is only shown: commands of redis-cli, or lines of redis.conf
    dockerfile, ini         are checked in tests/deploy
    nginx                   runs in tests/browser
    console                 lines that begin with "$ jobmill" are parsed, but not run

A page runs in an empty working directory without JOBMILL_URL, so `jobmill.connect()` creates its file there. If the
blocks of a page use REDIS_URL or MONGO_URL, the variable has the URL of an empty database.
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
from jobmill.compat import celery
from tests.docs.node import Scripts, parsed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))


def page_id(page: Path) -> str:
    """The name of a page in the ids of tests: its path in docs/, without its ending."""
    return page.relative_to(DOCS).with_suffix("").as_posix() if page.is_relative_to(DOCS) else page.stem


_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_CELL_BORDER = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Block:
    """One code block; `line` is the number of its first line."""

    page: Path
    line: int
    language: str
    how: str
    code: str

    def __str__(self) -> str:
        """The page and the line."""
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that the block is written to, or added to."""
        kind, _, name = self.how.partition("=")
        return name if kind in ("file", "append") else None

    def write(self, folder: Path) -> None:
        """Write the block to its file, or add it to the end of its file."""
        assert self.file is not None
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        before = f"{path.read_text()}\n\n" if self.how.startswith("append=") else ""
        path.write_text(before + self.code)


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
    """The texts in single backticks."""
    return _SPAN.findall(text)


def headings(page: Path) -> list[str]:
    """All headings of a page."""
    return [match[2] for match in _HEADING.finditer(without_blocks(page))]


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next heading of its level or above, with its blocks."""
    text = page.read_text()
    start = next(match for match in _HEADING.finditer(text) if match[2] == heading)
    behind = [match for match in _HEADING.finditer(text, start.end()) if len(match[1]) <= len(start[1])]
    return text[start.end() : behind[0].start() if behind else len(text)]


def table(page: Path, heading: str, first_column: str) -> list[dict[str, str]]:
    """The rows, by column, of the table under a heading that has this first column."""
    lines = iter(section(page, heading).splitlines())
    columns: list[str] = next(cells for line in lines if (cells := _cells(line))[:1] == [first_column])
    next(lines)  # the line below the columns
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
    """The only code in a cell."""
    (code,) = spans(cell)
    return code


class Example:
    """Runs one page, block by block, in its own directory."""

    def __init__(self, page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delenv("JOBMILL_URL", raising=False)
        self._folder = folder
        self._monkeypatch = monkeypatch
        name = "docs_" + re.sub(r"\W", "_", page_id(page).lower())
        # A real module, because classes are looked up by the name of their module.
        self._module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, self._module)
        self.namespace = vars(self._module)
        self._files: list[str] = []
        # Each page may bind a client of its own to its tasks.
        monkeypatch.setattr(celery._shared.binding, "_client", None)
        monkeypatch.setattr(celery._shared, "tasks", {})
        #: Set if the page has JavaScript to run.
        self.scripts: Scripts | None = None

    async def run(self, block: Block) -> None:
        """Run, compile or write the block, as its first line says."""
        if block.file is not None:
            if block.language == "python":
                compiled(block)  # also a file that nothing imports
            block.write(self._folder)
            # A file in a folder is a module of a package: both are forgotten when the page ends.
            parts = block.file.removesuffix(".py").split("/")
            self._files += [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
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
        if block.how == "no-run":
            await parsed(str(block), block.code, self._folder)
            return
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
        """Close every client that the page created, and remove its modules."""
        for client in self._clients():
            if "sync" in vars(client):
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
    """Whether a page uses a Redis server."""
    return any("REDIS_URL" in block.code for block in blocks(page) if block.language in ("python", "js"))


def needs_mongo(page: Path) -> bool:
    """Whether a page uses a MongoDB server."""
    return any("MONGO_URL" in block.code for block in blocks(page) if block.language in ("python", "js"))


def needs_node(page: Path) -> bool:
    """Whether a page has JavaScript to run."""
    return any(block.language == "js" and block.how != "no-run" for block in blocks(page))


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
