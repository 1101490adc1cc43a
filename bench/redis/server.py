"""One Valkey for the whole run, without a disk: emptied between runs, and what it has spent so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from redis import Redis

from tests.servers.redis import RedisServer

#: What the report says about how the server is set up.
TOLD = ("save", "appendonly", "io-threads", "maxmemory", "maxmemory-policy")
AT_ONCE = 1_000


class Weight(Struct, frozen=True):
    """Bytes on the server: of all keys, of the streams among them, and of all that it has allocated."""

    keys: int
    streams: int
    used: int


class Server:
    """Runs from when it is made until it is closed."""

    def __init__(self) -> None:
        self._server = RedisServer().__enter__()
        self._connection: Any = Redis.from_url(self._server.url())

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._connection.close()
        self._server.close()

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        info = self._connection.info("server")
        version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
        settings = (f"{name}={value}" for name, value in self._connection.config_get(*TOLD).items())
        return {"redis": f"{version}, {', '.join(settings)}"}

    def url(self, database: int) -> str:
        """Of one of its databases."""
        return self._server.url(database)

    @contextmanager
    def emptied(self) -> Iterator[str]:
        """The URL of the server, without a key before and afterwards."""
        self._empty()
        try:
            yield self._server.url()
        finally:
            self._empty()

    def _empty(self) -> None:
        """At once: Valkey would do it in the background, and the next run would pay for it."""
        self._connection.execute_command("FLUSHALL", "SYNC")

    def cpu_seconds(self) -> float:
        """Of all its threads, until now, to the nanosecond; INFO knows those of 10 ms only on some systems."""
        tasks = Path(f"/proc/{self._server.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text("utf-8").split()[0]) for one in tasks) / 1e9

    def weight(self) -> Weight:
        """Of what is in there now."""
        keys, streams = self._usage(None), self._usage("stream")
        return Weight(keys=keys, streams=streams, used=self._connection.info("memory")["used_memory"])

    def _usage(self, type: str | None) -> int:
        """Of all keys, or of those of one type."""
        keys = list(self._connection.scan_iter(count=AT_ONCE, _type=type))
        return sum(self._usage_of(keys[first : first + AT_ONCE]) for first in range(0, len(keys), AT_ONCE))

    def _usage_of(self, keys: list[bytes]) -> int:
        pipeline = self._connection.pipeline(transaction=False)
        for key in keys:
            pipeline.memory_usage(key, samples=0)
        return sum(pipeline.execute())
