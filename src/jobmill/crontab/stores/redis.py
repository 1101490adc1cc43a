"""Documents in Redis: a sorted set of ids by date, and a hash for each document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import UNSET
from redis.asyncio import Redis, RedisCluster
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError, ResponseError

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.interval import check_interval
from jobmill.crontab.job import CrontabJob
from jobmill.crontab.stores import rows
from jobmill.crontab.stores.base import DocumentStore, Write
from jobmill.crontab.stores.uncertain_writes import UncertainWrites
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.connection.errors import failure
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.url import RedisUrl

_LUA = files("jobmill.crontab.stores") / "lua"
LOCK, FINISH, ADD = (Script((_LUA / f"{verb}.lua").read_text("utf-8")) for verb in ("lock", "finish", "add"))

#: The maximum number of documents per call, because a script blocks the server.
MAX_PER_CALL = 200
Word = str | bytes | int


class RedisCrontab(DocumentStore):
    """Documents under a name, at a URL of the Redis store or through an asyncio client of redis-py.

    The keys are `{name}:sleep_until`, a sorted set of ids by milliseconds since 1970, and `{name}:document:<id>`, a
    hash with interval, repeat_until (milliseconds), auto_remove (1) and data (JSON). Ids are texts. An id without a
    hash is a document too. A document that is not in the set sleeps for ever.
    """

    def __init__(
        self, database: str | Redis | RedisCluster, name: str, *, clock: Callable[[], int] | None = None
    ) -> None:
        super().__init__(clock)
        if not _is_text(name) or "{" in name or "}" in name:
            raise InvalidValue("name", "a name without braces, because Redis Cluster needs braces around it", name)
        if isinstance(database, str):
            self._scripts: RedisClient | _ClientScripts = RedisClient(RedisUrl.read(database))
        elif isinstance(database, Redis | RedisCluster):
            self._scripts = _ClientScripts(database)
        else:
            raise InvalidValue("database", "redis://… or a client of redis.asyncio", database)
        self._set = f"{{{name}}}:sleep_until"
        self._prefix = f"{{{name}}}:document:"
        self._uncertain = UncertainWrites(self._clock)

    async def add(
        self,
        id: str,
        *,
        sleep_until: datetime | None = None,
        interval: str | None = None,
        repeat_until: datetime | None = None,
        auto_remove: bool = False,
        data: Any = None,
    ) -> None:
        """Write or replace a document. It is due at `sleep_until` (default: now). An invalid cron is refused."""
        if not _is_text(id):
            raise InvalidValue("id", "a text that is not empty", id)
        check_interval(interval)
        due = self._clock() if sleep_until is None else instant_ms(sleep_until, "sleep_until")
        fields: list[Word] = ["data", msgspec.json.encode(data), "auto_remove", int(auto_remove)]
        if interval:
            fields += ["interval", interval]
        if repeat_until is not None:
            fields += ["repeat_until", instant_ms(repeat_until, "repeat_until")]
        await self._scripts.run(ADD, self._set, [self._prefix + id, id, due, *fields])

    # ------------------------------------------------------------------------------------------------ lock

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due documents, in one script."""
        lock = instant_ms(lock_until, "lock_until")
        args: list[Word] = [self._clock(), lock, min(limit, MAX_PER_CALL), self._prefix]
        return [_job(found, lock_until) for found in await self._scripts.run(LOCK, self._set, args)]

    # ------------------------------------------------------------------------------------------------ finish

    async def _write(self, writes: Sequence[Write]) -> list[bool]:
        """Make all writes in one script, or in several if there are many."""
        done: list[bool] = []
        with self._uncertain.remember_on_error(writes):
            for some in chunks(writes, MAX_PER_CALL):
                words = [word for write in some for word in _words(write)]
                answers = await self._scripts.run(FINISH, self._set, [self._prefix, *words])
                # 2: an earlier, unanswered write may have been done.
                done += [
                    answer == 1 or (answer == 2 and write in self._uncertain)
                    for write, answer in zip(some, answers, strict=True)
                ]
        return done

    # ------------------------------------------------------------------------------------------------ the rest

    async def close(self) -> None:
        """Close the connections that this store opened."""
        await self._scripts.close()


class _ClientScripts:
    """Runs scripts with a client of the user, which stays open. Its errors become errors of this package."""

    def __init__(self, client: Redis | RedisCluster) -> None:
        self._client: Any = client

    async def run(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        # Even a client that decodes must not raise for an id that is not UTF-8 after it is locked.
        execute: Callable[..., Awaitable[Any]] = partial(self._client.execute_command, **{NEVER_DECODE: True})
        try:
            try:
                return await execute("EVALSHA", script.sha, 1, key, *args)
            except NoScriptError:
                return await execute("EVAL", script.source, 1, key, *args)
        except ResponseError as error:
            raise failure(str(error), "the client that was given") from error
        except RedisError as error:  # also when a cluster has lost nodes
            raise StoreUnavailable(f"Redis cannot be used now: {error}") from error

    async def close(self) -> None:
        pass


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _words(write: Write) -> tuple[Word, ...]:
    """The arguments of the script for one write."""
    fence = "" if write.locked_until is None else instant_ms(write.locked_until, "locked_until")
    if write.remove:
        return write.id, fence, "", "", 1
    sleep_until: Word = ""
    if write.sleep_until is not UNSET:
        sleep_until = "null" if write.sleep_until is None else instant_ms(write.sleep_until, "sleep_until")
    return write.id, fence, sleep_until, "" if write.auto_remove is UNSET else int(write.auto_remove), ""


def _job(found: Sequence[Any], locked_until: datetime) -> CrontabJob:
    score, interval, repeat_until, auto_remove, data = (
        one.decode(errors="replace") if isinstance(one, bytes) else one for one in found[1:]
    )
    return rows.job(
        _id(found[0]),
        sleep_until=to_datetime(int(max(float(score), 0))),  # -inf is a score
        interval=interval,
        repeat_until=_until(repeat_until),
        auto_remove=auto_remove not in (None, "", "0"),
        data=_data(data),
        locked_until=locked_until,
    )


def _id(found: str | bytes) -> str | bytes:
    """The id as text, or as bytes if it is not UTF-8, so that it can be found again."""
    try:
        return found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError:
        return found


def _until(text: str | None) -> Any:
    """An instant; a text that is not a number is passed on."""
    if not text:
        return None
    try:
        return rows.instant_of_ms(int(text))
    except ValueError:
        return text


def _data(text: str | None) -> Any:
    """The decoded JSON, or the text if a person wrote something else."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
