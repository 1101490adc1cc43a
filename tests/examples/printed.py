"""What an example tells its reader to do: the commands in its first lines or its README, and how they run here."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.pages import ROOT, blocks
from tests.kit.node import find_node

EXAMPLES = ROOT / "examples"
#: Programs that are scripts of a Python environment, and the modules behind them.
SCRIPTS = {name: name for name in ("uvicorn", "flask", "litestar", "jobmill", "pytest")}
#: Programs that tests do not run: what they would do is tested in another way.
NOT_RUN = ("pip", "npm", "docker", "curl")


class Command(NamedTuple):
    """One line: its words, and the variables before them."""

    words: tuple[str, ...]
    variables: dict[str, str]

    @property
    def program(self) -> str:
        return self.words[0]

    def argv(self) -> list[str]:
        """As it runs in this environment, without a script: its first line holds a path, which a moved tree breaks.

        With -P Python does not search the working directory, as in a script.
        """
        program, *rest = self.words
        if program == "python":
            return [sys.executable, *rest]
        if program == "node":
            return [str(find_node()), *rest]
        return [sys.executable, "-P", "-m", SCRIPTS[program], *rest]


def commands(example: str) -> list[Command]:
    """The commands of an example, in order."""
    path = EXAMPLES / example
    if path.is_dir():
        text = "\n".join(block.code for block in blocks(path / "README.md") if block.language == "console")
    else:
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return [_command(line) for line in re.findall(r"^ *\$ (.+)$", text, re.MULTILINE)]


def _command(line: str) -> Command:
    words = shlex.split(line, comments=True)
    variables: dict[str, str] = {}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    return Command(tuple(words), variables)


def printed(example: str, line: str) -> Command:
    """The command that an example prints and that begins like this; a test that uses another one fails here."""
    found = [command for command in commands(example) if shlex.join(command.words).startswith(line)]
    assert found, f"{example} does not print a command like: {line}"
    return found[0]


def output(example: str) -> list[str]:
    """The lines that a reader should see."""
    path = EXAMPLES / example
    if path.is_dir():
        (block,) = [block for block in blocks(path / "README.md") if block.language == "text"]
        return block.code.splitlines()
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return [line.strip() for line in text.splitlines() if line.startswith("    ") and not line.startswith("    $")]


class Request(NamedTuple):
    """What a command line of curl sends."""

    method: str
    path: str
    body: Any


def curls(example: str) -> list[Request]:
    """The requests of an example."""
    return [_request(command.words) for command in commands(example) if command.program == "curl"]


def _request(words: Sequence[str]) -> Request:
    body, path, rest = None, "", iter(words[1:])
    for word in rest:
        if word in ("-d", "--json"):
            body = json.loads(next(rest))
        elif word == "-H":
            assert next(rest) == "content-type: application/json"
        else:
            path = "/" + word.removeprefix("http://").partition("/")[2]
    return Request("GET" if body is None else "POST", path, body)


# ---------------------------------------------------------------------------------------------------- runs


def copied(example: str, folder: Path) -> Path:
    """A copy of an example, where it may write; the folder in which its commands run."""
    source = EXAMPLES / example
    if source.is_dir():
        return Path(shutil.copytree(source, folder / example))
    shutil.copy(source, folder)
    return folder


def run(command: Command, folder: Path, environment: Mapping[str, str] | None = None, timeout: float = 120) -> str:
    """Run a command to its end, which must be a success without a word on stderr; what it printed."""
    ran = subprocess.run(
        command.argv(),
        cwd=folder,
        env=environment_of(command, environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), f"{command}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def environment_of(command: Command, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without a store of ours; an example must find its own modules, so there is no PYTHONPATH."""
    own = {name: value for name, value in os.environ.items() if name not in ("JOBMILL_URL", "PYTHONPATH")}
    return {**own, "PYTHONDONTWRITEBYTECODE": "1", **command.variables, **(environment or {})}
