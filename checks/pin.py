"""Pins packages, with the hashes of all their files on PyPI: writes constraints.txt and deploy/requirements.txt.

The first has all packages that dev.py installs, the second those of the image of deploy/Dockerfile.

    python3 -m checks.pin              take over the versions of constraints.txt; what is new there gets the newest one
    python3 -m checks.pin --upgrade    the newest version of every package

It needs `uv` on the PATH. The pins are valid on every Python and system that Jobmill supports.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
UV = "uv pip compile pyproject.toml - --universal --python-version 3.11 --generate-hashes --no-config --quiet"
OUTPUT = "--no-header --no-annotate --no-emit-index-url --default-index https://pypi.org/simple"
IMAGE = ROOT / "deploy/requirements.txt"
IMAGE_EXTRAS = ("postgres", "redis", "mongo", "uvloop")
HEAD = """\
# The packages that dev.py installs, with the hashes of all their files on PyPI. An extra needs the packages above the
# line `# end of EXTRA`. `python3 -m checks.pin` writes this file.
"""
IMAGE_HEAD = """\
# The packages of the image of deploy/Dockerfile, with the hashes of all their files on PyPI. `python3 -m checks.pin`
# writes this file.
"""


def pinned(extras: Sequence[str], arguments: Sequence[str], build: Sequence[str] = ()) -> dict[str, str]:
    """The lines of each package that the extras need, and those of `build`."""
    chosen = [word for extra in extras for word in ("--extra", extra)]
    command = [*UV.split(), *OUTPUT.split(), *chosen, *arguments]
    given = "\n".join(build)
    done = subprocess.run(command, cwd=ROOT, input=given, stdout=subprocess.PIPE, text=True, check=True)
    # By name and version: a package may have another version on another Python.
    return {line.split()[0]: line for line in re.split(r"\n(?=\S)", done.stdout.strip())}


def main() -> None:
    """Write both files. The last extra of constraints.txt holds all others, so its lines have the widest markers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # hatchling asks for `editables` where it makes an editable wheel.
    build = [*project["build-system"]["requires"], "editables"]
    same = ["--constraints", "constraints.txt"]
    known = [] if "--upgrade" in sys.argv else same
    parts = {extra: pinned([extra] if extra else [], known, build) for extra in ("", "test", "bench", "dev")}
    text, written = HEAD, set[str]()
    for extra, packages in parts.items():
        text += "".join(f"{parts['dev'][name]}\n" for name in packages if name not in written)
        text += f"# end of {extra or 'base'}\n"
        written |= packages.keys()
    FILE.write_text(text)
    IMAGE.write_text(IMAGE_HEAD + "".join(f"{line}\n" for line in pinned(IMAGE_EXTRAS, same).values()))


if __name__ == "__main__":
    main()
