"""Builds a Dockerfile without a container engine: runs its steps in a folder in place of /, with this machine's Python.

It knows the instructions that ours has, and refuses others.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dev
from tests.deploy.files import ROOT

#: Folders of the image that begin in our folder instead.
MOVED = re.compile(r"(?<![\w./])/(?=(?:app|build|data|opt)\b)")


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each instruction, without comments."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, " ".join(rest.split())


class Image:
    """An image, as far as it is built. Each stage begins with an empty folder, and with a Python that has only pip."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.root = folder / "root"
        self._stages = folder / "stages"
        self._shims = folder / "shims"
        self.bases: list[str] = []
        self._stage = ""
        self.environment: dict[str, str] = {}
        self.folder = self.root
        self.settings: dict[str, str] = {}
        self._shims.mkdir()
        self._stages.mkdir()
        if os.getuid() != 0:  # who may not give files away
            (self._shims / "chown").write_text("#!/bin/sh\n")
            (self._shims / "chown").chmod(0o755)
        for name, text in instructions(file):
            getattr(self, f"_{name.lower()}")(text)

    def command(self, name: str) -> list[str]:
        """The words of ENTRYPOINT, CMD or HEALTHCHECK."""
        words: list[str] = json.loads(self.settings[name])
        return words

    def inside(self, text: str) -> str:
        """Text with the absolute paths of the image."""
        return MOVED.sub(f"{self.root}/", text)

    def path(self, written: str) -> Path:
        """A path of the image."""
        return self.root / written[1:] if written.startswith("/") else self.folder / written

    def _from(self, text: str) -> None:
        if self.bases:
            self.root.rename(self._stages / self._stage)
        base, _, self._stage = text.partition(" AS ")
        self.bases.append(base)
        self.folder = self.root
        self.root.mkdir()
        python = self.root / "python"
        builder = dev.python_with_pip()
        subprocess.run([builder, "-m", "venv", "--without-pip", python], check=True)
        install = [builder, "-m", "pip", "--python", str(python / "bin/python"), "--quiet", "install", "pip"]
        subprocess.run(install, check=True)
        # As little as possible of ours: how pip finds packages.
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        path = f"{self._shims}:{python / 'bin'}:{os.defpath}"
        self.environment = {**kept, "PATH": path, "HOME": os.environ["HOME"]}

    def _workdir(self, text: str) -> None:
        self.folder = self.path(text)
        self.folder.mkdir(parents=True)

    def _copy(self, text: str) -> None:
        *sources, target = text.split()
        origin = ROOT
        if sources[0].startswith("--from="):
            origin = self._stages / sources.pop(0).removeprefix("--from=")
        for source in sources:
            found, to = origin / source.removeprefix("/"), self.path(target)
            if found.is_dir():
                shutil.copytree(found, to, symlinks=True)
            else:
                shutil.copy(found, to / found.name)

    def _env(self, text: str) -> None:
        for word in shlex.split(text):
            name, _, value = word.partition("=")
            self.environment[name] = self.inside(value).replace("$PATH", self.environment["PATH"])

    def _run(self, text: str) -> None:
        ran = subprocess.run(
            ["sh", "-ec", self.inside(text)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}"

    def _user(self, text: str) -> None:
        self.settings["USER"] = text

    def _expose(self, text: str) -> None:
        self.settings["EXPOSE"] = text

    def _healthcheck(self, text: str) -> None:
        self.settings["HEALTHCHECK"] = text.partition(" CMD ")[2]

    def _entrypoint(self, text: str) -> None:
        self.settings["ENTRYPOINT"] = text

    def _cmd(self, text: str) -> None:
        self.settings["CMD"] = text
