"""What all verbs of the Redis store share: the client, the clock, and what this process knows about queues."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from jobmill.core.flows import MAX_RELEASED
from jobmill.core.values import QueueSettings
from jobmill.stores.common.chunks import chunks
from jobmill.stores.common.server_clock import ServerClock
from jobmill.stores.redis.circuit_breaker import CircuitBreaker
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.recovery import LeaseScans
from jobmill.stores.redis.scripts import EACH, Script
from jobmill.stores.redis.url import RedisUrl, slot_of

#: The server executes one call at a time: no call may keep it busy for long.
MAX_JOBS_PER_CALL = 200
#: A server refuses an argument of more than 512 MB, or of less where it is configured so.
MAX_BYTES_PER_CALL = 8_000_000
#: Of commands that take less than a microsecond.
MAX_READS_PER_CALL = 5_000
#: How many calls are sent before the first is answered: client and server work at the same time. Each has a deadline.
MAX_CALLS_IN_FLIGHT = 8
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
        #: When this process last began a scan for queues: see queues.py.
        self.scan_began_ms = 0
        #: The name of the worker that claims through this store.
        self.worker = ""
        # Not under the prefix: keys there belong to a queue.
        self.registry = f"jobmill:{self.url.prefix}:queues"
        self.other_queues = f"jobmill:{self.url.prefix}:other-queues"
        #: What the keys of workers, tallies and the audit log begin with: one slot of a cluster.
        self.operations = f"jobmill:{self.url.prefix}:{{operations}}"
        self._registered: set[str] = set()
        self._common: dict[str, Any] = {"max_events": QueueSettings().events_max_len, "max_told": MAX_RELEASED}
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

    async def run_on_relays(self, script: Script, relays: str, now_ms: int, **request: Any) -> Any:
        """Run a script on a queue of relays: see relays.lua."""
        return await self.client.run(script, relays, (_encode({"now": now_ms, **self._common, **request}),))

    async def run_operation(self, script: Script, **request: Any) -> Any:
        """Run a script that concerns no queue."""
        message = _encode({"now": self.clock.now(), **self._common, **request})
        return await self.client.run(script, self.operations, (message,))

    async def run_in_batches(
        self, script: Script, field: str, items: Sequence[tuple[str, Any]], max_count: int, **request: Any
    ) -> list[Any]:
        """Run a script that takes items of many queues of one slot: queue and value. Returns an answer for each."""
        by_slot: defaultdict[int, list[tuple[int, Any]]] = defaultdict(list)
        if self.url.kind == "cluster":
            for position, (queue, value) in enumerate(items):
                by_slot[slot_of(self.key(queue))].append((position, value))
        else:
            by_slot[0] = [(position, value) for position, (_, value) in enumerate(items)]
        answers: dict[int, Any] = {}

        async def run(part: Sequence[tuple[int, Any]]) -> None:
            positions, values = zip(*part, strict=True)
            queue = items[positions[0]][0]
            found = await self.run(script, queue, self.clock.now(), **{field: values}, **request)
            answers.update(zip(positions, found, strict=True))

        parts = [part for own in by_slot.values() for part in chunks(own, max_count)]
        for calls in chunks(parts, MAX_CALLS_IN_FLIGHT):
            await asyncio.gather(*map(run, calls))
        return [answers[position] for position in range(len(items))]

    async def each(self, queues: Sequence[str], commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies of each queue to the same commands: [command, end of the key, argument...].

        A call asks many queues, because as commands of their own 20,000 replies take half a second.
        """
        items = [(queue, self.key(queue)) for queue in queues]
        max_count = MAX_READS_PER_CALL // (len(commands) + 1) + 1
        return await self.run_in_batches(EACH, "queues", items, max_count, commands=commands)

    async def register(self, queue: str) -> None:
        """Note that Jobmill has put jobs into this queue, or settings: it is found without a scan of all keys."""
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
