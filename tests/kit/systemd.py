"""systemd-analyze, which checks unit files without a running systemd.

The program is the one that JOBMILL_TEST_SYSTEMD_ANALYZE names, or the system's. Without both, on Debian and its like,
it is that of the distribution's package, which apt downloads into .cache/ without installing anything.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kit.apt import AptPackages
from tests.kit.processes import NoServer

BINARY = "JOBMILL_TEST_SYSTEMD_ANALYZE"
CACHE = Path(__file__).parents[2] / ".cache" / "systemd"
WITHOUT = f"no systemd-analyze: install it with the system (package systemd), or name it in {BINARY}"
LIBRARY = "**/libsystemd-shared-*.so"

ANSWERS_WITHIN_S = 60


@functools.cache
def find_systemd_analyze() -> tuple[Path, dict[str, str]]:
    """A systemd-analyze and the environment that it needs, or a sentence that says what to install."""
    if named := os.environ.get(BINARY):
        if shutil.which(named) is None:
            raise NoServer(f"{BINARY}: expected a systemd-analyze that can be run, got {named!r}")
        return Path(named), {}
    if on_path := shutil.which("systemd-analyze"):
        return Path(on_path), {}
    if not CACHE.exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise NoServer(WITHOUT)
        _download()
    shared, units = next(CACHE.glob(LIBRARY)).parent, next(CACHE.glob("**/multi-user.target")).parent
    return CACHE / "usr/bin/systemd-analyze", {"LD_LIBRARY_PATH": str(shared), "SYSTEMD_UNIT_PATH": str(units)}


def _download() -> None:
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as work:
        apt = AptPackages(Path(work), WITHOUT)
        root = Path(work, "root")
        subprocess.run(["dpkg-deb", "--extract", apt.fetch("systemd"), root], check=True)
        if not list(root.glob(LIBRARY)):
            subprocess.run(["dpkg-deb", "--extract", apt.fetch("libsystemd-shared"), root], check=True)
        with contextlib.suppress(OSError):  # another process may have been faster
            root.replace(CACHE)


def systemd_analyze(*arguments: str) -> tuple[int, str]:
    """Run it: its exit code, and all that it said."""
    program, environment = find_systemd_analyze()
    ran = subprocess.run(
        [program, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=ANSWERS_WITHIN_S,
    )
    return ran.returncode, ran.stdout
