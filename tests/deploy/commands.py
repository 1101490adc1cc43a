"""Command lines of the files in deploy/, run as processes on this machine in place of containers and services."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.files import ROOT, documents
from tests.helpers import until
from tests.kit.places import free_port
from tests.kit.processes import launched
from tests.kit.scrape import ask

#: What the image sets.
PORT = "8080"
PASSWORD = "s3cret"


class Place:
    """Where commands run: a folder with the application, an environment, and ports in place of those of the files."""

    program: Sequence[str] = (sys.executable, "-m", "jobmill")

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._ports: dict[str, int] = {}
        for name in ("quickstart.py", "shop/jobs.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text((ROOT / "examples/quickstart.py").read_text())

    def port(self, written: str = PORT) -> int:
        """The port that stands for one of the files."""
        if written not in self._ports:
            self._ports[written] = free_port()
        return self._ports[written]

    def local(self, word: str) -> str:
        """A word of a command line, with ports and addresses of this machine."""
        word = word.replace("0.0.0.0", "127.0.0.1")
        return re.sub(r"\b80\d\d\b", lambda match: str(self.port(match[0])), word)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Our environment with that of a container or service; the store is the one of the test."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("JOBMILL_")}
        path = os.pathsep.join([f"{ROOT / 'src'}", *filter(None, [own.get("PYTHONPATH")])])
        local = {name: self.local(value) for name, value in given.items()}
        return {**own, "PYTHONPATH": path, **local, "JOBMILL_URL": self.url}

    def run(self, arguments: Sequence[str], given: Mapping[str, str]) -> str:
        """`jobmill …` to its end, which must be a success; what it printed."""
        ran = subprocess.run(
            [*self.program, *map(self.local, arguments)],
            cwd=self.folder,
            env=self.environment(given),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, f"{arguments}: {ran.stderr}"
        return ran.stdout

    @contextlib.contextmanager
    def running(self, arguments: Sequence[str], given: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """`jobmill …` while the block runs. Then SIGTERM must end it with 0."""
        log = self.folder / f"{arguments[0]}.log"
        command = [*self.program, *map(self.local, arguments)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                launched(None, signal.SIGKILL, command),
                cwd=self.folder,
                env=self.environment(given),
                stdout=output,
                stderr=output,
            )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()

    async def answers(self, path: str, written: str = PORT) -> None:
        """Wait until a probe succeeds."""
        port = self.port(written)
        await until(lambda: (answer := ask(port, path)) is not None and answer.status == 200, 40)


def services(file: Path) -> dict[str, dict[str, Any]]:
    """The services of a compose file, with its variables replaced."""
    (content,) = documents(file)
    return {name: _replaced(service) for name, service in content["services"].items()}


def _replaced(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replaced(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one) for one in value]
    return re.sub(r"\$\{\w+_PASSWORD:\?[^}]+\}", PASSWORD, value) if isinstance(value, str) else value


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit file; each may occur several times."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def exec_start(path: Path, instance: str = "mail") -> list[str]:
    """The arguments of jobmill that a unit starts."""
    (command,) = unit(path)["ExecStart"]
    program, *arguments = shlex.split(command.replace("%i", instance))
    assert program == "/opt/shop/.venv/bin/jobmill"
    return arguments


def option(arguments: Sequence[str], name: str) -> str:
    """The value of an option, as the next word or after an equals sign."""
    words = [part for word in arguments for part in word.split("=", 1)]
    return words[words.index(f"--{name}") + 1]


def container(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The only container of a Deployment or Job."""
    (one,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(one)


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    """The plain variables of a container."""
    return {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
