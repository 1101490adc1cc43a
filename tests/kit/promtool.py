"""Prometheus and promtool, its checker.

The binaries are those that JOBMILL_TEST_PROMETHEUS and JOBMILL_TEST_PROMTOOL name, or the system's. Without both, on
Debian and its like, they are those of the distribution's package, which apt downloads into .cache/ without installing
anything: neither PyPI nor npm has them.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.kit.apt import AptPackages
from tests.kit.processes import NoServer, Server

PROGRAMS = ("prometheus", "promtool")
CACHE = Path(__file__).parents[2] / ".cache"

ANSWERS_WITHIN_S = 60


@functools.cache
def find_program(name: str) -> Path:
    """One of the programs, or a sentence that says what to install."""
    variable = f"JOBMILL_TEST_{name.upper()}"
    if named := os.environ.get(variable):
        if shutil.which(named) is None:
            raise NoServer(f"{variable}: expected a {name} that can be run, got {named!r}")
        return Path(named)
    if on_path := shutil.which(name):
        return Path(on_path)
    if not (CACHE / name).exists():
        without = f"no {name}: install it with the system (package prometheus), or name its binary in {variable}"
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise NoServer(without)
        _download(without)
    return CACHE / name


def _download(without: str) -> None:
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        package = AptPackages(Path(work), without).fetch("prometheus")
        subprocess.run(["dpkg-deb", "--extract", package, f"{work}/root"], check=True)
        for name in PROGRAMS:
            Path(work, "root/usr/bin", name).replace(CACHE / name)  # at once: another process may have been faster


def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Run it: its exit code, and all that it said."""
    ran = subprocess.run(
        [find_program("promtool"), *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=ANSWERS_WITHIN_S,
    )
    return ran.returncode, ran.stdout


class PrometheusServer(Server):
    """A Prometheus with this configuration; rule files are read from its folder."""

    stop_signal = signal.SIGTERM
    death_signal = signal.SIGKILL

    def __init__(self, config: Path) -> None:
        super().__init__()
        self.user = None  # it reads the configuration of a test, in a folder that only we may enter
        self._config = config

    def command(self) -> Sequence[str | Path]:
        """Everything that it writes is in its own directory."""
        return [
            find_program("prometheus"),
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def is_ready(self) -> bool:
        """It has loaded its configuration."""
        try:
            return self._answer("/-/ready")[0] == 200
        except OSError:
            return False

    def ask(self, path: str) -> Any:
        """The data that the API answers."""
        status, text = self._answer(f"/api/v1/{path}")
        assert status == 200, text
        return json.loads(text)["data"]

    def query(self, expression: str) -> dict[str, float]:
        """What an expression is now: values by the label `job`, or by nothing."""
        found = self.ask(f"query?query={quote(expression)}")["result"]
        return {sample["metric"].get("job", ""): float(sample["value"][1]) for sample in found}

    def _answer(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWERS_WITHIN_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()
