"""What all verbs of the Redis store share: the client, the clock, and what this process knows about queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from jobmill.core.values import QueueSettings
from jobmill.stores.common.chunks import chunks
from jobmill.stores.common.server_clock import ServerClock
from jobmill.stores.redis.circuit_breaker import CircuitBreaker
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.recovery import LeaseScans
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.url import RedisUrl

#: The server executes one call at a time: no call may keep it busy for long.
MAX_JOBS_PER_CALL = 200
#: A server refuses an argument of more than 512 MB, or of less where it is configured so.
MAX_BYTES_PER_CALL = 8_000_000
# With a caller's own clock, that clock decides when leases and windows end: their keys must outlive them.
LINGER_MS = 3_600_000

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


def by_queue(
    items: Iterable[T], queue_of: Callable[[T], str], max_count: int = MAX_JOBS_PER_CALL
) -> Iterator[tuple[str, Sequence[T]]]:
    """Each queue with its items, in parts that one call may carry."""
    found: defaultdict[str, list[T]] = defaultdict(list)
    for item in items:
        found[queue_of(item)].append(item)
    for queue, own in found.items():
        for part in chunks(own, max_count):
            yield queue, part


def as_json(value: Any) -> str:
    """JSON as text: the msgpack of Redis has no type for bytes."""
    return msgspec.json.encode(value).decode()


def flat(fields: Mapping[str, Any]) -> list[Any]:
    """Fields as a command takes them: name, value, name, value."""
    return [part for field in fields.items() for part in field]


class RedisContext:
    """One server, or cluster, and one prefix."""

    def __init__(self, url: str, clock: Callable[[], int] | None = None, linger_ms: int | None = None) -> None:
        self.url = RedisUrl.read(url)
        self.client = RedisClient(self.url)
        self.clock = ServerClock(clock)
        self.scans = LeaseScans()
        self.breaker = CircuitBreaker()
        #: By queue: whether its feed is on, according to the last reply. Events of settlements are sent only then.
        self.feeds: dict[str, bool] = {}
        #: By queue: until when its marker is left to other workers. See wake.py.
        self.marker_ignored_until_ms: dict[str, int] = {}
        #: The queues that have reached a limit, according to the last reply.
        self.limited: set[str] = set()
        #: By queue and names: when a claim last read many jobs that it could not have.
        self.fruitless_scan_ms: dict[tuple[str, frozenset[str]], int] = {}
        #: The queues that the last scan found, for pages that follow another.
        self.scanned_queues: list[str] | None = None
        #: The name of the worker that claims through this store.
        self.worker = ""
        # Not under the prefix: keys there belong to a queue.
        self.registry = f"jobmill:{self.url.prefix}:queues"
        self._registered: set[str] = set()
        self._common: dict[str, Any] = {"max_events": QueueSettings().events_max_len}
        if self.url.layout == 5:
            self._common["v5"] = True
        if linger_ms is None:
            linger_ms = LINGER_MS if clock else 0
        if linger_ms:
            self._common["linger"] = linger_ms

    def key(self, queue: str) -> str:
        """What the keys of a queue begin with."""
        return f"{self.url.prefix}:{queue}"

    async def run(self, script: Script, queue: str, now_ms: int, **request: Any) -> Any:
        """Run a script on one queue. The request is a single argument."""
        self.url.check_queue(queue)
        return await self.client.run(script, self.key(queue), (_encode({"now": now_ms, **self._common, **request}),))

    async def register(self, queue: str) -> None:
        """Note that Jobmill has put jobs into this queue: an id without a queue is looked up there first."""
        if queue not in self._registered:
            self.url.check_queue(queue)
            await self.client.call(self.registry, "SADD", self.registry, queue)
            self._registered.add(queue)

    async def learn_time(self) -> None:
        """Measure the server's clock, which is the store's, unless the caller passed one."""
        if not self.clock.is_given:
            started = self.clock.start()
            seconds, micros = await self.client.call(self.key(""), "TIME")
            self.clock.learn(int(seconds) * 1000 + int(micros) / 1000, started)
