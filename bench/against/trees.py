"""The two trees: the working tree and a copy of a commit, each with an environment of its own, cached per commit."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[2]
#: What both environments hold: also the drivers, and the loop that `jobmill worker` takes.
EXTRA = "dev"


class Tree(Struct, frozen=True):
    """Where the sources are, and the interpreter that has them installed."""

    name: str
    root: Path
    python: Path


def cache() -> Path:
    """Where copies of commits and environments stay, outside the tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jobmill-bench"


def working_tree() -> Tree:
    """As it is now. Its environment is made like the other one, so that both have the same packages."""
    place = cache() / f"tree-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"
    return Tree("new", ROOT, _environment(ROOT, place))


def checkout(commit: str) -> Tree:
    """The files of a commit, with an environment of their own."""
    root = files(commit)
    return Tree("old", root, _environment(root, root.parent / "venv"))


def files(commit: str) -> Path:
    """The files of a commit, outside the repository: git keeps no note of the copy."""
    sha = _git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    root = cache() / sha[:12] / "tree"
    if not root.exists():
        half = root.with_name(f"tree-{os.getpid()}")
        with tarfile.open(fileobj=io.BytesIO(_git("archive", sha))) as archive:
            archive.extractall(half, filter="data")
        half.rename(root)  # never half of it under the final name
    return root


def _git(*arguments: str) -> bytes:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if ran.returncode:
        raise ValueError(f"git {' '.join(arguments)}: {ran.stderr.decode().strip()}")
    return ran.stdout


def _environment(root: Path, venv: Path) -> Path:
    """The interpreter of an environment with this tree installed, made by its own dev.py when it is not there."""
    spec = importlib.util.spec_from_file_location("dev_of_a_tree", root / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    dev.ROOT, dev.VENV, dev.PYTHON = root, venv, venv / dev.PYTHON.relative_to(dev.VENV)
    dev.prepare(EXTRA)
    python: Path = dev.PYTHON
    return python
