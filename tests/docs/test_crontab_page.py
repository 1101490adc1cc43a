"""docs/crontab.md has exactly the options and defaults of the code, and the examples run as programs."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobmill.crontab import Crontab, MongoCrontab, PostgresCrontab, SqliteCrontab
from tests.docs.pages import ROOT, blocks, code_of, table

PAGE = ROOT / "docs/crontab.md"


def defaults(made: Any) -> dict[str, Any]:
    """The defaults by parameter. Parameters without a default, and those that must be given, are "required"."""
    required = ("store", "on_document")
    return {
        name: "required" if parameter.default is parameter.empty or name in required else parameter.default
        for name, parameter in inspect.signature(made).parameters.items()
    }


def documented(heading: str) -> dict[str, Any]:
    """The same from the page."""
    known = {"asyncio": asyncio, "random": __import__("random")}
    return {
        code_of(row["option"]): "required" if row["default"] == "required" else eval(code_of(row["default"]), known)
        for row in table(PAGE, heading, "option")
    }


def test_the_options_are_those_of_the_code() -> None:
    assert documented("Options") == defaults(Crontab)
    assert documented("MongoDB") == defaults(MongoCrontab)
    tables = documented("SQLite and PostgreSQL")
    assert tables == defaults(SqliteCrontab)
    del tables["dates"]
    assert tables == defaults(PostgresCrontab)


def test_the_hooks_are_those_of_the_code() -> None:
    hooks = [code_of(row["hook"]) for row in table(PAGE, "Hooks", "hook")]
    assert hooks == [name for name in inspect.signature(Crontab).parameters if name.startswith("on_")]


def test_the_example_of_a_store_is_short() -> None:
    (block,) = [block for block in blocks(PAGE) if "class JsonCrontab" in block.code]
    own = block.code[block.code.index("class JsonCrontab") : block.code.index("async def test_")].strip()
    assert len(re.findall(r"^.*\S.*$", own, re.MULTILINE)) <= 45


# ---------------------------------------------------------------------------------------------------- examples


@contextmanager
def running(example: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """An example as a program."""
    with subprocess.Popen(
        [sys.executable, ROOT / "examples" / example],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True, scope="module")
def _ctrl_c() -> Iterator[None]:
    """Programs get SIGINT even if a shell started these tests with `&`, which makes them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_the_basic_example_runs_until_ctrl_c(tmp_path: Path) -> None:
    with running("crontab_basic.py", tmp_path) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "all are done and removed":
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
    assert (rest, errors, process.returncode) == ("", "", 0)
    assert sorted(lines[:2]) == ["again: hello Lin", "now: hello Ada"]
    assert "later: hello Grace" in lines
    # Once at the start, and at one or two whole seconds before the end, depending on the clock.
    assert 2 <= lines.count("again: hello Lin") <= 3


@pytest.mark.slow
@pytest.mark.stores("mongo")
def test_the_mongodb_example_runs_until_ctrl_c(tmp_path: Path, mongo_url: str) -> None:
    with running("crontab_mongodb.py", tmp_path, MONGO_URL=mongo_url) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
    assert (lines, rest, errors) == (["welcome to Ada", "hello again to Lin"], "", "")
    assert process.returncode == 0
