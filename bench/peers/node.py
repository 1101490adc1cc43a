"""The peers that run on Node.js: scripts of the folder `node`, whose packages are installed on first use."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.child import Child
from tests.kit.node import Packages, find_node, version
from tests.kit.processes import NoServer

R = TypeVar("R")

FOLDER = Path(__file__).with_name("node")
#: What graphile-worker asks for. An older node is taken where there is no other: it runs there too.
WANTED = (22, 18)
#: Beside the packages in Python, where git, linters and builds do not look.
PACKAGES = Packages(FOLDER, Path(sys.prefix) / "bench-peers", WANTED)


@functools.cache
def missing() -> str | None:
    """Why peers on Node.js cannot be measured; None when they can, and are installed."""
    try:
        find_node(WANTED)
        PACKAGES.install()
    except (NoServer, OSError) as error:
        return str(error)
    return None


def start(script: str, command: str, answer: type[R], **arguments: object) -> Child[R]:
    """A command of a script of the folder in a fresh process."""
    words = PACKAGES.command(script, command, msgspec.json.encode(arguments).decode())
    return Child(f"{script} {command}", words, answer)


def was_used() -> bool:
    """Whether a peer on Node.js was asked for, and is there."""
    return missing.cache_info().currsize > 0 and missing() is None


def versions() -> str:
    """Of Node.js and of the packages, for the report."""
    wanted = msgspec.json.decode((FOLDER / "package.json").read_bytes())["dependencies"]
    packages = ", ".join(f"{name} {number}" for name, number in wanted.items())
    return f"node {'.'.join(map(str, version(find_node(WANTED))))}, {packages}"
