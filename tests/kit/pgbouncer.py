"""PgBouncer in front of a PostgreSQL server, pooling by transaction.

    with PgBouncer(server.port) as bouncer:
        connection = await asyncpg.connect(bouncer.url(server.url()), statement_cache_size=0)

The binary is the one that JOBMILL_TEST_PGBOUNCER names, or the system's; failing both, on Debian and its like, the
distribution's own package, which apt downloads into .cache/ without installing anything.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.kit.apt import AptPackages
from tests.kit.places import at_port, is_reachable
from tests.kit.processes import NoServer, Server

BINARY = "JOBMILL_TEST_PGBOUNCER"
SYSTEM = ("/usr/sbin/pgbouncer",)  # which is on root's path only
CACHE = Path(__file__).parents[2] / ".cache" / "pgbouncer"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A PgBouncer that runs, and where the libraries are that the system does not have."""

    binary: Path
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """Ours, with those libraries."""
        if not self.libraries:
            return dict(os.environ)
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, self.libraries))}

    def runs(self) -> bool:
        """Whether it starts at all."""
        try:
            ran = subprocess.run(
                [self.binary, "--version"], env=self.environment(), capture_output=True, check=False, timeout=10
            )
        except OSError:
            return False
        return ran.returncode == 0

    def missing(self) -> list[str]:
        """The libraries that the system does not have."""
        said = subprocess.run(
            ["ldd", self.binary], env=self.environment(), capture_output=True, text=True, check=False
        ).stdout
        return re.findall(r"(\S+) => not found", said)


def find_pgbouncer() -> Program:
    """A PgBouncer that runs here, or a sentence that says what to install."""
    if named := os.environ.get(BINARY):
        program = Program(binary=Path(named))
        if not program.runs():
            raise NoServer(f"{BINARY}: expected a PgBouncer that runs, got {named!r}")
        return program
    for place in (shutil.which("pgbouncer"), *SYSTEM):
        if place and (program := Program(binary=Path(place))).runs():
            return program
    if CACHE.is_dir() and (program := _unpacked(CACHE)).runs():
        return program
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return _download()
    raise NoServer(f"no PgBouncer: install it with the system (package pgbouncer), or name its binary in {BINARY}")


def _unpacked(root: Path) -> Program:
    libraries = {library.parent for library in root.rglob("lib*.so*")}
    return Program(binary=root / "usr/sbin/pgbouncer", libraries=tuple(sorted(libraries)))


def _download() -> Program:
    """Fetch the distribution's package and those libraries that are missing, and keep them for the next time."""
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as work:
        root = Path(work) / "root"
        packages = AptPackages(
            Path(work),
            f"no PgBouncer: install it with the system (apt install pgbouncer), or name its binary in {BINARY}",
        )
        wanted = ["pgbouncer"]
        for name in wanted:  # grows
            package = packages.fetch(name)
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
            if not _unpacked(root).missing():
                break
            wanted += [other for other in _libraries_of(package) if other not in wanted]
        if not _unpacked(root).runs():
            raise NoServer(f"the distribution's PgBouncer does not run here: name another in {BINARY}")
        if not _unpacked(CACHE).runs():  # another process may have been faster
            shutil.rmtree(CACHE, ignore_errors=True)
            root.rename(CACHE)
    return _unpacked(CACHE)


def _libraries_of(package: Path) -> list[str]:
    """The library packages that a package depends on and that are not installed."""
    said = subprocess.run(["dpkg-deb", "--field", package, "Depends"], capture_output=True, text=True, check=True)
    names = re.findall(r"(?:^|[,|])\s*(lib[a-z0-9.+-]+)", said.stdout)
    return [name for name in names if subprocess.run(["dpkg", "-s", name], capture_output=True, check=False).returncode]


class PgBouncer(Server):
    """A PgBouncer before the server at a port, with so many connections to it for each database."""

    stop_signal = death_signal = signal.SIGKILL  # others wait for clients, in some versions; and it keeps nothing

    def __init__(self, server_port: int, *, pool_size: int = 2, settings: Mapping[str, str] | None = None) -> None:
        self._program = find_pgbouncer()
        super().__init__()
        if not is_reachable(self._program.binary, self.user):
            self._program = _copied(self._program, self.room_for_programs())
        self._server_port = server_port
        self.settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self.directory / "users"),
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
            **(settings or {}),
        }

    def url(self, url: str) -> str:
        """The same database, through here."""
        return at_port(url, self.port)

    def environment(self) -> dict[str, str]:
        """With the libraries that the system does not have."""
        return self._program.environment()

    def command(self) -> Sequence[str | Path]:
        """After writing its files; it writes none itself."""
        (self.directory / "users").write_text('"postgres" ""\n')
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={self._server_port}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in self.settings.items()),
        ]
        config = self.directory / "pgbouncer.ini"
        config.write_text("\n".join(lines) + "\n")
        return [self._program.binary, config]

    def is_ready(self) -> bool:
        """When it takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


def _copied(program: Program, directory: Path) -> Program:
    """A copy, with its libraries, in a directory that its user may enter."""
    libraries = directory / "lib"
    libraries.mkdir()
    for library in (file for place in program.libraries for file in place.glob("*.so*")):
        shutil.copy(library, libraries)
    return Program(binary=Path(shutil.copy(program.binary, directory)), libraries=(libraries,))
