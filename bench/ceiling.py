"""What redis-benchmark reaches on a server with the cheapest commands there are."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from bench.child import Broken
from bench.peers.about import About
from tests.kit.redis import first_installation

NAME = "redis-benchmark"
PROGRAMS = ("valkey-benchmark", NAME)
MISSING = (
    "neither redis-benchmark nor valkey-benchmark is on the PATH or beside the server; no wheel has one: it comes with "
    "the system's redis-tools or valkey-tools"
)
CONNECTIONS = 50
#: Commands that each connection sends before it awaits an answer.
PIPELINED = (1, 16)
COMMANDS = "PING/s"
SECONDS = 2.0
TRIAL = 20_000
LIMIT_S = 60.0

ABOUT = About(
    name=NAME,
    package=None,
    settings=f"{CONNECTIONS} connections, without and with {PIPELINED[1]} commands in a pipeline; as many LPUSHs as "
    f"take {SECONDS:.0f} s, then as many RPOPs, a job being one of each; and PINGs",
    guarantee="–",
)


class Reached(Struct, frozen=True):
    """A second: so many PINGs, and so many jobs that are one LPUSH and one RPOP."""

    pings: float
    jobs: float


def what(pipelined: int) -> str:
    """As it stands in the tables."""
    return "LPUSH + RPOP" + (f", {pipelined} in a pipeline" if pipelined > 1 else "")


def program() -> Path | None:
    """Beside the server that is measured, or what the system has."""
    beside = first_installation().binary.parent
    places = [
        *(beside / name for name in PROGRAMS),
        *(Path(found) for name in PROGRAMS if (found := shutil.which(name))),
    ]
    return next((place for place in places if place.is_file()), None)


def measure(program: Path, url: str, pipelined: int) -> Reached:
    """Each command for about two seconds, by the rate of a trial; it fills the list that it then empties."""
    pings = _rate(program, url, pipelined, "ping_mbulk", TRIAL)
    requests = int(pings * SECONDS)
    pings, pushes, pops = (_rate(program, url, pipelined, one, requests) for one in ("ping_mbulk", "lpush", "rpop"))
    return Reached(pings, 1 / (1 / pushes + 1 / pops))


def _rate(program: Path, url: str, pipelined: int, test: str, requests: int) -> float:
    parts = urlsplit(url)
    where = ["-h", parts.hostname or "", "-p", str(parts.port), "--dbnum", parts.path.removeprefix("/") or "0"]
    how = ["-c", str(CONNECTIONS), "-P", str(pipelined), "-n", str(requests), "-t", test, "--csv"]
    try:
        said = subprocess.run(
            [program, *where, *how],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
        return next(float(row[1]) for row in csv.reader(said.splitlines()) if row[0].lower() == test)
    except (subprocess.SubprocessError, OSError, StopIteration, ValueError, IndexError) as error:
        raise Broken(f"{program.name} -t {test}: {error}") from error
