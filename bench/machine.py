"""What the figures were measured on and with."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import time
from importlib import metadata
from pathlib import Path

from bench.peers import apart

PACKAGES = (
    *("jobmill", "huey", "msgspec", "uvloop", "asyncpg", "pgqueuer", "procrastinate", "psycopg", "chancy"),
    *("redis", "hiredis", "pymongo"),
)
SYNCS = 50


def describe(place: Path) -> dict[str, str]:
    """Machine, file system, versions; in the order in which the report shows them."""
    return {
        "processor": f"{_processor()}, {len(_cores())} of {os.cpu_count()} cores",
        "system": platform.platform(),
        "load average": load(),
        "python": f"{platform.python_implementation()} {platform.python_version()}, asyncio's own event loop unless "
        "stated",
        "sqlite": sqlite3.sqlite_version,
        "file system": f"{_file_system(place)} at {place.parent}",
        "fdatasync of 4 KB": f"{_sync_ms(place):.2f} ms (median of {SYNCS})",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "packages apart": apart.versions(),
        "commit": _commit(),
    }


def load() -> str:
    """Over the last 1, 5 and 15 minutes: whether somebody else was at work too."""
    return " ".join(f"{one:.2f}" for one in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"


def busy_s() -> float:
    """Seconds that all cores have worked since the start, for anybody: also for another guest on this machine."""
    try:
        ticks = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _file_system(place: Path) -> str:
    """Its type, by the mount point that is nearest above the place."""
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    except OSError:
        return "unknown"
    mounts = [(line.split(" ")[1], line.split(" ")[2]) for line in lines]
    above = [(point, kind) for point, kind in mounts if place.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def _sync_ms(place: Path) -> float:
    """What a commit waits for."""
    path = place / "sync"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            began = time.perf_counter()
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(times) * 1000


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is not installed"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        ran = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return ran.stdout.strip() or "unknown"
