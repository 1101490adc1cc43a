"""Peers in Python whose demands clash with another peer's: installed on first use, each set in a directory of its own.

In the parent: `apart.missing("saq")`. In the child, before the peer or anything that it shares is imported:
`apart.use("saq")`. What a set holds stands in `apart/<set>.txt`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

WANTED = Path(__file__).with_name("apart")
HOME = Path(sys.prefix) / "bench-peers" / "python"
STAMP = ".installed"
INSTALLS_WITHIN_S = 300


@functools.cache
def missing(name: str) -> str | None:
    """Why the peers of this set cannot be measured; None when they can, and are installed."""
    file, home = WANTED / f"{name}.txt", HOME / name
    wanted, stamp = file.read_text("utf-8"), home / STAMP
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return None
    shutil.rmtree(home, ignore_errors=True)
    # The environment has no pip of its own; the interpreter that it was made from has: dev.py used it.
    python: str = getattr(sys, "_base_executable", sys.executable)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "-qq", "install", "--no-deps"]
    command = [*pip, "--target", str(home), "-r", str(file)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`pip install` of {file.name} took longer than {INSTALLS_WITHIN_S} s"
    if ran.returncode:
        return f"`pip install` of {file.name} failed: {' '.join(ran.stderr.split())[-500:]}"
    stamp.write_text(wanted, "utf-8")
    return None


def use(name: str) -> None:
    """Called in the child: from now on the packages of this set are found, and before others of their name."""
    home = str(HOME / name)
    if home not in sys.path:
        sys.path.insert(0, home)


def versions() -> str:
    """What the sets hold, for the report."""
    lines = (line for file in sorted(WANTED.glob("*.txt")) for line in file.read_text("utf-8").splitlines())
    return ", ".join(dict.fromkeys(line.replace("==", " ") for line in lines if not line.startswith("#")))
