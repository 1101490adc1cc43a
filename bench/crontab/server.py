"""One MongoDB for the whole run, a replica set of one member: a fresh database for each run, and what it has spent."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.mongo import MongoReplicaSet

#: MongoDB's own defaults, where the tests' servers are quicker to set up.
SETTINGS = {"journalCommitInterval": "100", "wiredTigerCacheSizeGB": "1"}


class Server:
    """Runs from when it is made until it is closed."""

    def __init__(self) -> None:
        self._group = MongoReplicaSet(settings=SETTINGS).__enter__()
        self._names = (f"bench{n}" for n in itertools.count())

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._group.close()

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        with self._group.client() as client:
            version = client.server_info()["version"]
        told = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
        return {
            "crontab": f"MongoDB {version}, a replica set of one member, {told}, writes by w=majority (its default)"
        }

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, which is dropped afterwards."""
        name = next(self._names)
        try:
            yield self._group.url(name)
        finally:
            with self._group.client() as client:
                client.drop_database(name)

    def cpu_seconds(self) -> float:
        """Until now, in hundredths; with threads that have ended, for each connection has its own."""
        fields = Path(f"/proc/{self._group.nodes[0].pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
