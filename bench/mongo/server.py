"""One MongoDB for the whole run, a replica set of one member on a disk: databases by the run, and what it has spent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tests.kit.mongo import SET, MongoReplicaSet
from tests.kit.places import PrivateDirectory

#: Of clock_getcpuclockid(3): a process's clock of all its threads, those that have ended included, to the nanosecond.
SCHEDULED = 2


class Server:
    """Runs from when it is made until it is closed.

    With mongod's defaults, and not as tests start theirs: the journal on a disk and not in memory, the cache and the
    oplog as large as mongod makes them, diagnostics collected.
    """

    def __init__(self) -> None:
        self._data = PrivateDirectory(durable=True)
        self._group = MongoReplicaSet()
        self._node = self._group.nodes[0]
        self._node.settings = {
            "bind_ip": "127.0.0.1",
            "port": str(self._node.port),
            "replSet": SET,
            "dbpath": str(self._data.path),
        }
        self._node.parameters = {}
        self._lasting: dict[str, str] = {}
        try:
            self._group.__enter__()
        except BaseException:
            self._data.remove()
            raise

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._group.close()
        self._data.remove()

    def describe(self) -> dict[str, str]:
        """Version, settings and place."""
        said = self._node.ask("serverStatus")
        cache = said["wiredTiger"]["cache"]["maximum bytes configured"] / 2**30
        journal_ms = self._node.ask("getParameter", journalCommitInterval=1)["journalCommitInterval"]
        return {
            "mongodb": f"{said['version']}, a replica set of one member, defaults: cache {cache:.1f} GB, "
            f"the journal written each {journal_ms} ms, and at once for a majority write",
            "mongodb's data": str(self._data.path.parent),
        }

    @contextlib.contextmanager
    def database(self, **options: str) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards; the options are added to it.

        It names the member alone: who knows of the set asks it for its members, and would go past a proxy.
        """
        with self._node.database(**options) as url:
            yield url

    def lasting(self, name: str, make: Callable[[str], None], **options: str) -> str:
        """The URL of the database of this name, which `make` fills when it is first asked for; as long as it runs."""
        if name not in self._lasting:
            url = self._node.url(f"lasting{len(self._lasting)}", **options)
            make(url)
            self._lasting[name] = url
        return self._lasting[name]

    def checkpoint(self) -> None:
        """Write all that is dirty, so that no run pays for what came before it."""
        self._node.ask("fsync", within_ms=120_000)

    def cpu_seconds(self) -> float:
        """Of all its threads, until now; those of closed connections have ended."""
        return time.clock_gettime((~self._node.pid << 3) | SCHEDULED)

    def journal_bytes(self) -> int:
        """Written to the journal so far. Of what is replicated that is the oplog: the rest waits for a checkpoint."""
        return int(self._node.ask("serverStatus")["wiredTiger"]["log"]["log bytes written"])
