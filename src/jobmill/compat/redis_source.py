"""Reads what Celery, RQ and arq have waiting in a Redis server. It writes nothing there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

from jobmill.compat import arq_jobs, celery_messages, rq_jobs
from jobmill.compat.found import ForeignJob, NotImportable
from jobmill.errors import InvalidValue, MissingExtra, StoreUnavailable
from jobmill.stores.common.url import without_credentials

try:
    import redis.asyncio as redis
    from redis.exceptions import RedisError, ResponseError
except ModuleNotFoundError:
    raise MissingExtra("jobmill import needs redis: pip install 'jobmill[redis]'") from None

#: Jobs that are read in one call.
CHUNK = 200
CONNECT_S = 5.0
MAX_SCORE = 1e15
#: Between the name of a queue and its priority: kombu's own, and the one that Celery's documentation proposes.
SEPARATORS = ("\x06\x16", ":")
BINDINGS = "_kombu.binding."
#: Exchanges of Celery's own messages between workers.
INTERNAL = ("celery.pidbox", "reply.celery.pidbox", "celeryev")

FoundOrNot: TypeAlias = ForeignJob | NotImportable


class RedisSource:
    """The Redis server of another system."""

    def __init__(
        self, connection: Any, *, queues: Sequence[str] = (), prefix: str = "", allow_pickle: bool = False
    ) -> None:
        self._redis = connection
        self._queues = tuple(queues)
        #: Celery's `global_keyprefix`.
        self._prefix = prefix
        self._allow_pickle = allow_pickle
        self._now_ms = int(time.time() * 1000)

    # ------------------------------------------------------------------------------------------------ Celery

    async def celery(self) -> AsyncIterator[FoundOrNot]:
        """The messages in Celery's lists, in the order of its workers; then unacknowledged ones."""
        routes = await self._celery_routes()
        for queue in self._queues or tuple(dict.fromkeys(routes.values())) or ("celery",):
            for key in await self._lists_of(queue):
                async for raw in self._from_the_right(key):
                    yield _read(
                        celery_messages.read_message, raw, queue, now_ms=self._now_ms, allow_pickle=self._allow_pickle
                    )
        async for _, raw in self._redis.hscan_iter(f"{self._prefix}unacked", count=CHUNK):
            found = _read(
                celery_messages.read_unacked, raw, routes, now_ms=self._now_ms, allow_pickle=self._allow_pickle
            )
            if not self._queues or (isinstance(found, ForeignJob) and found.queue in self._queues):
                yield found

    async def celery_left(self) -> dict[str, int]:
        """How much of Celery is not imported."""
        return {
            "results": await self._count_keys(f"{self._prefix}celery-task-meta-*"),
        }

    async def _celery_routes(self) -> dict[tuple[str, str], str]:
        routes: dict[tuple[str, str], str] = {}
        async for key in self._redis.scan_iter(f"{_escaped(self._prefix)}{BINDINGS}*", count=1_000, _type="SET"):
            exchange = _text(key)[len(self._prefix) + len(BINDINGS) :]
            if exchange in INTERNAL:
                continue
            for member in sorted(await self._redis.smembers(key)):
                separator = SEPARATORS[0] if SEPARATORS[0] in _text(member) else SEPARATORS[1]
                routing_key, *_, queue = _text(member).split(separator)
                routes[exchange, routing_key] = queue
        return routes

    async def _lists_of(self, queue: str) -> list[str]:
        keys = [queue, *(f"{queue}{mark}{number}" for number in range(1, 256) for mark in SEPARATORS)]
        keys = [f"{self._prefix}{key}" for key in keys]
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.llen(key)
            lengths = await pipe.execute(raise_on_error=False)
        # A key of another type belongs to somebody else.
        return [key for key, length in zip(keys, lengths, strict=True) if isinstance(length, int) and length]

    async def _from_the_right(self, key: str) -> AsyncIterator[bytes]:
        """The oldest message is the last one. New messages come at the left, and do not move what is counted here."""
        start = 0
        while chunk := await self._redis.lrange(key, -(start + CHUNK), -(start + 1)):
            for raw in reversed(chunk):
                yield raw
            start += len(chunk)

    # ------------------------------------------------------------------------------------------------ RQ

    async def rq(self) -> AsyncIterator[FoundOrNot]:
        """RQ's jobs that wait in a queue or are scheduled."""
        for queue in await self._rq_queues():
            start = 0
            while ids := await self._redis.lrange(f"rq:queue:{queue}", start, start + CHUNK - 1):
                for one in await self._rq_jobs([(id, None) for id in ids], queue):
                    yield one
                start += len(ids)
            async for scored in self._scored(f"rq:scheduled:{queue}"):
                for one in await self._rq_jobs([(id, _ms(score * 1000)) for id, score in scored], queue):
                    yield one

    async def rq_left(self) -> dict[str, int]:
        """How many of RQ's jobs are not imported."""
        queues = await self._rq_queues()
        kinds = {"running": "wip", "deferred": "deferred", "failed": "failed", "finished": "finished"}
        left = {
            name: sum([await self._redis.zcard(f"rq:{kind}:{queue}") for queue in queues])
            for name, kind in kinds.items()
        }
        taken = sum([await self._redis.llen(f"rq:queue:{queue}:intermediate") for queue in queues])
        return {**left, "running": left["running"] + taken}

    async def _rq_queues(self) -> Sequence[str]:
        if self._queues:
            return self._queues
        found = {_text(key).removeprefix("rq:queue:") for key in await self._redis.smembers("rq:queues")}
        async for key in self._redis.scan_iter("rq:scheduled:*", count=1_000, _type="ZSET"):
            found.add(_text(key).removeprefix("rq:scheduled:"))
        return sorted(found)

    async def _rq_jobs(self, ids: Sequence[tuple[bytes, int | None]], queue: str) -> list[FoundOrNot]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for id, _ in ids:
                pipe.hgetall(b"rq:job:" + id)
            hashes = await pipe.execute(raise_on_error=False)
        return [
            _read(rq_jobs.read_job, _text(id), fields, queue, due_ms=due_ms, allow_pickle=self._allow_pickle)
            if isinstance(fields, dict)
            else NotImportable("damaged: its key is not a hash", _text(id))
            for (id, due_ms), fields in zip(ids, hashes, strict=True)
        ]

    # ------------------------------------------------------------------------------------------------ arq

    async def arq(self) -> AsyncIterator[FoundOrNot]:
        """arq's jobs that wait, also those that are deferred; without those that run."""
        for queue in await self._arq_queues():
            async for scored in self._scored(queue):
                ids = [id for id, _ in scored]
                data = await self._redis.mget([b"arq:job:" + id for id in ids])
                running = await self._redis.mget([b"arq:in-progress:" + id for id in ids])
                for (id, score), value, runs in zip(scored, data, running, strict=True):
                    if runs is None:
                        due_ms = _ms(score) if score > self._now_ms else None
                        yield _read(
                            arq_jobs.read_job, _text(id), value, queue, due_ms=due_ms, allow_pickle=self._allow_pickle
                        )

    async def arq_left(self) -> dict[str, int]:
        """How much of arq is not imported."""
        return {
            "running": await self._count_keys("arq:in-progress:*"),
            "results": await self._count_keys("arq:result:*"),
        }

    async def _arq_queues(self) -> Sequence[str]:
        if self._queues:
            return self._queues
        return sorted([_text(key) async for key in self._redis.scan_iter("arq:queue*", count=1_000, _type="ZSET")])

    # ------------------------------------------------------------------------------------------------ all

    async def _scored(self, key: str) -> AsyncIterator[list[tuple[bytes, float]]]:
        start = 0
        while chunk := await self._redis.zrange(key, start, start + CHUNK - 1, withscores=True):
            # Protocol 3 answers with lists.
            yield [(id, score) for id, score in chunk]
            start += len(chunk)

    async def _count_keys(self, pattern: str) -> int:
        count = 0
        async for _ in self._redis.scan_iter(pattern, count=1_000):
            count += 1
        return count


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisSource]:
    """The source at a URL; StoreUnavailable where it cannot be read."""
    shown = without_credentials(url)
    if not url.startswith(("redis://", "rediss://", "unix://", "valkey://", "valkeys://")):
        raise InvalidValue("url", "redis://host:port/database, rediss://… or unix://path of the other system", shown)
    plain = url.replace("valkeys://", "rediss://", 1).replace("valkey://", "redis://", 1)
    try:
        connection: Any = redis.Redis.from_url(plain, socket_connect_timeout=CONNECT_S, protocol=2)
    except ValueError as error:
        raise InvalidValue("url", "a URL of Redis", shown, str(error)) from None
    try:
        yield RedisSource(connection, **options)
    except ResponseError as error:
        raise StoreUnavailable(f"cannot read {shown}: {error}") from error
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"cannot reach {shown}: {error}") from error
    finally:
        await connection.aclose()


def _read(read: Callable[..., ForeignJob], *args: Any, **options: Any) -> FoundOrNot:
    try:
        return read(*args, **options)
    except NotImportable as error:
        return error


def _ms(score: float) -> int:
    """A score may be infinite. Then it is a time that is refused later."""
    return int(min(max(score, 0), MAX_SCORE))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _escaped(text: str) -> str:
    """A text in a pattern of Redis that stands for itself."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)
