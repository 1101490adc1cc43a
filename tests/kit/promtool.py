"""promtool, Prometheus' own checker.

The binary is the one that JOBMILL_TEST_PROMTOOL names, or the system's. Without both, on Debian and its like, it is
that of the distribution's package, which apt downloads into .cache/ without installing anything: neither PyPI nor npm
has it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kit.apt import AptPackages
from tests.kit.processes import NoServer

BINARY = "JOBMILL_TEST_PROMTOOL"
CACHE = Path(__file__).parents[2] / ".cache" / "promtool"
WITHOUT = f"no promtool: install it with the system (package prometheus), or name its binary in {BINARY}"

ANSWERS_WITHIN_S = 60


@functools.cache
def find_promtool() -> Path:
    """A promtool, or a sentence that says what to install."""
    if named := os.environ.get(BINARY):
        if shutil.which(named) is None:
            raise NoServer(f"{BINARY}: expected a promtool that can be run, got {named!r}")
        return Path(named)
    if on_path := shutil.which("promtool"):
        return Path(on_path)
    if not CACHE.exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise NoServer(WITHOUT)
        _download()
    return CACHE


def _download() -> None:
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as work:
        package = AptPackages(Path(work), WITHOUT).fetch("prometheus")
        subprocess.run(["dpkg-deb", "--extract", package, f"{work}/root"], check=True)
        Path(work, "root/usr/bin/promtool").replace(CACHE)  # at once: another process may have been faster


def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Run it: its exit code, and all that it said."""
    ran = subprocess.run(
        [find_promtool(), *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=ANSWERS_WITHIN_S,
    )
    return ran.returncode, ran.stdout
