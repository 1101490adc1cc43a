"""Peers in Python whose demands clash with another peer's: installed on first use, in a directory of their own.

In the parent: `apart.missing()`. In the child, before the peer is imported: `apart.use()`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

WANTED = Path(__file__).with_name("apart.txt")
HOME = Path(sys.prefix) / "bench-peers" / "python"
STAMP = HOME / ".installed"
INSTALLS_WITHIN_S = 300


@functools.cache
def missing() -> str | None:
    """Why these peers cannot be measured; None when they can, and are installed."""
    wanted = WANTED.read_text("utf-8")
    if STAMP.exists() and STAMP.read_text("utf-8") == wanted:
        return None
    shutil.rmtree(HOME, ignore_errors=True)
    # The environment has no pip of its own; the interpreter that it was made from has: dev.py used it.
    python: str = getattr(sys, "_base_executable", sys.executable)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "-qq", "install", "--no-deps"]
    command = [*pip, "--target", str(HOME), "-r", str(WANTED)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`pip install` of {WANTED.name} took longer than {INSTALLS_WITHIN_S} s"
    if ran.returncode:
        return f"`pip install` of {WANTED.name} failed: {' '.join(ran.stderr.split())[-500:]}"
    STAMP.write_text(wanted, "utf-8")
    return None


def use() -> None:
    """Called in the child: from now on these packages are found, and before others of their name."""
    sys.path.insert(0, str(HOME))
