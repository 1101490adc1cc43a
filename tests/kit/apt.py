"""Programs of the distribution, which apt downloads without installing anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit.processes import NoServer

#: How long a package may take to arrive.
DOWNLOAD_S = 120.0


class AptPackages:
    """What apt can download, into a directory of ours; the system stays as it is."""

    def __init__(self, directory: Path, without: str) -> None:
        """`without` is what to say when a package cannot be downloaded."""
        self._directory = directory
        self._without = without
        self._has_own_lists = False
        # As root apt would drop to a user of its own, who may not write here.
        self._options = ["-o", "APT::Sandbox::User=root", "-o", f"Dir::Cache={directory / 'cache'}"]
        (directory / "cache/archives/partial").mkdir(parents=True)

    def fetch(self, name: str) -> Path:
        """A package's file. Where the system has no lists of packages, as in a container, they are fetched first."""
        ran = self._apt("download", name)
        if ran.returncode and not self._has_own_lists:
            self._fetch_lists()
            ran = self._apt("download", name)
        if ran.returncode:
            raise NoServer(f"{self._without}. apt could not download {name}: {ran.stderr.strip()[-500:]}")
        return next(self._directory.glob(f"{name}_*.deb"))

    def _fetch_lists(self) -> None:
        self._has_own_lists = True
        (self._directory / "lists/partial").mkdir(parents=True)
        self._options += ["-o", f"Dir::State::Lists={self._directory / 'lists'}"]
        self._apt("update")

    def _apt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["apt-get", *self._options, *arguments],
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_S,
        )
