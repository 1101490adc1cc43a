"""Commands, run in this process by click's runner or as processes of their own, on one SQLite file a test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

import jobmill
from jobmill.cli import main
from tests.kit.processes import launched

T = TypeVar("T")

SOURCES = Path(jobmill.__file__).parents[1]

APP = """
import asyncio
import jobmill

jobs = jobmill.connect()
number = 7

@jobs.handler()
async def double(n: int) -> int:
    return 2 * n

@jobs.handler(max_attempts=1)
async def refuse() -> None:
    raise RuntimeError("not today,\\nnor tomorrow")

@jobs.handler()
async def snail(context: jobmill.Context) -> None:
    context.log("here I go")
    await asyncio.sleep(3600)
"""


class Shell:
    """One store, and commands on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self.processes: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a process finds: this store, and this very source."""
        return {**os.environ, "JOBMILL_URL": self.url, "PYTHONPATH": str(SOURCES), "PYTHONUNBUFFERED": "1"}

    def __call__(self, *args: str, code: int = 0, input: str | None = None) -> Result:
        """Run a command here; it must end with this code."""
        result = CliRunner(env={"JOBMILL_URL": self.url, "JOBMILL_DEBUG": ""}).invoke(main, list(args), input=input)
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        """What a command answers to programs."""
        return json.loads(self(*args, "--json", code=code).stdout)

    def enqueue(self, *args: str) -> str:
        """Enqueue a job; its id."""
        id: str = self.json("enqueue", *args)["id"]
        return id

    def refused(self, *args: str, code: int, input: str | None = None) -> str:
        """The one line that a command says on stderr when it ends with this code."""
        result = self(*args, code=code, input=input)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("jobmill: ")
        return line

    def do(self, work: Callable[[jobmill.Client], Awaitable[T]]) -> T:
        """Something that a command cannot do."""

        async def all_of_it() -> T:
            async with jobmill.connect(self.url) as client:
                return await work(client)

        return asyncio.run(all_of_it())

    def tick(self) -> None:
        """Run what is due: `good` succeeds, `bad` fails."""

        async def work(client: jobmill.Client) -> None:
            @client.handler()
            async def good(n: int = 0) -> int:
                return n + 1

            @client.handler(max_attempts=1)
            async def bad(context: jobmill.Context) -> None:
                context.log("a line before the end", "warning")
                raise RuntimeError("out of paper")

            await client.tick(100)

        self.do(work)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a separate process."""
        process = subprocess.Popen(
            launched(None, signal.SIGKILL, [sys.executable, "-m", "jobmill", *args]),
            cwd=self.folder,
            env=self.environment,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            **options,
        )
        self.processes.append(process)
        return process

    def write_app(self, text: str = APP, name: str = "app.py") -> Path:
        """A module with a client."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> Iterator[None]:
    """Processes get SIGINT, even if a shell started these tests with `&`, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for process in made.processes:
        with process:
            process.kill()


__all__ = ["APP", "Shell", "shell"]
