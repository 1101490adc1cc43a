"""Pins all packages that dev.py installs, with the hashes of all their files on PyPI: writes constraints.txt.

    python3 -m checks.pin              take over the versions of constraints.txt; what is new there gets the newest one
    python3 -m checks.pin --upgrade    the newest version of every package

It needs `uv` on the PATH. The pins are valid on every Python and system that Jobmill supports.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
UV = "uv pip compile pyproject.toml - --universal --python-version 3.11 --generate-hashes --no-config --quiet"
OUTPUT = "--no-header --no-annotate --no-emit-index-url --default-index https://pypi.org/simple"
HEAD = """\
# The packages that dev.py installs, with the hashes of all their files on PyPI. An extra needs the packages above the
# line `# end of EXTRA`. `python3 -m checks.pin` writes this file.
"""


def pinned(extra: str, arguments: list[str]) -> dict[str, str]:
    """The lines of each package that an extra needs, and of what builds Jobmill."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # hatchling asks for `editables` where it makes an editable wheel.
    build = "\n".join([*project["build-system"]["requires"], "editables"])
    command = [*UV.split(), *OUTPUT.split(), *(["--extra", extra] if extra else []), *arguments]
    done = subprocess.run(command, cwd=ROOT, input=build, stdout=subprocess.PIPE, text=True, check=True)
    return {line.split("==")[0]: line for line in re.split(r"\n(?=\S)", done.stdout.strip())}


def main() -> None:
    """Write constraints.txt. The last extra holds all others, so its lines have the widest markers."""
    known = [] if "--upgrade" in sys.argv else ["--constraints", "constraints.txt"]
    parts = {extra: pinned(extra, known) for extra in ("", "test", "bench", "dev")}
    text, written = HEAD, set[str]()
    for extra, packages in parts.items():
        text += "".join(f"{parts['dev'][name]}\n" for name in packages if name not in written)
        text += f"# end of {extra or 'base'}\n"
        written |= packages.keys()
    FILE.write_text(text)


if __name__ == "__main__":
    main()
