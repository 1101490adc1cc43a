"""One Valkey for the whole run, without a disk: emptied between runs, and what it has spent so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from redis import Redis

from bench.child import Broken
from tests.kit.redis import RedisServer

#: What the report says about how the server is set up.
TOLD = ("save", "appendonly", "io-threads", "maxmemory", "maxmemory-policy")
AT_ONCE = 1_000
#: What is otherwise while an append-only file is written.
APPENDED = ("appendonly", "appendfsync", "auto-aof-rewrite-percentage")
LOOK_S, PATIENCE_S = 0.005, 30.0


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

    @contextmanager
    def appending(self) -> Iterator[Callable[..., int]]:
        """As long as the block lasts there is an append-only file, never rewritten; how long it is by now."""
        before = self._connection.config_get(*APPENDED)
        self._connection.config_set("appendfsync", "everysec", "auto-aof-rewrite-percentage", 0, "appendonly", "yes")
        try:
            yield lambda *_: self._appended()
        finally:
            self._connection.config_set(*(word for item in before.items() for word in item))

    def _appended(self) -> int:
        """When the file is begun, and nothing waits in memory to be written to it."""
        until = time.monotonic() + PATIENCE_S
        while True:
            said = self._connection.info("persistence")
            if not (said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"] or said["aof_buffer_length"]):
                return int(said["aof_current_size"])
            if time.monotonic() > until:
                raise Broken(f"the append-only file is not written within {PATIENCE_S:.0f} s: {said}")
            time.sleep(LOOK_S)

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
