"""Documents in Redis: ids in a sorted set by their date, and a hash of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from redis.asyncio import Redis, RedisCluster
from redis.client import NEVER_DECODE
from redis.exceptions import ConnectionError as AwayError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as LateError

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.interval import check_interval
from jobmill.crontab.job import Changes, CrontabJob, Ending
from jobmill.crontab.stores import rows
from jobmill.crontab.stores.clock import process_ms
from jobmill.crontab.stores.uncertain_writes import Doubts
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.connection.errors import failure
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.url import RedisUrl

_LUA = files("jobmill.crontab.stores") / "lua"
LOCK, FINISH, ADD = (Script((_LUA / f"{verb}.lua").read_text("utf-8")) for verb in ("lock", "finish", "add"))

#: The server executes one call at a time: no call may keep it busy for long.
MAX_PER_CALL = 200
Word = str | bytes | int


class ScriptRunner(Protocol):
    """What runs a script on the node of a key."""

    async def run(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        """Its answer, texts as str or bytes."""

    async def close(self) -> None:
        """Let go of what it made."""


class RedisCrontab:
    """Documents under a name, at a URL as the Redis store takes it, or through a client of redis-py's asyncio.

    The keys are `{name}:sleep_until`, a sorted set of ids by milliseconds since 1970, and `{name}:document:<id>`, each
    a hash with interval, repeat_until (milliseconds), auto_remove (1) and data (JSON). Ids are texts. An id without a
    hash is a document too; one that is not in the set sleeps for ever.
    """

    def __init__(self, place: str | Redis | RedisCluster, name: str, *, clock: Callable[[], int] | None = None) -> None:
        if not _is_text(name) or "{" in name or "}" in name:
            raise InvalidValue("name", "a name without braces: they are put around it, for Redis Cluster", name)
        if isinstance(place, str):
            self._line: ScriptRunner = RedisClient(RedisUrl.read(place))
        elif isinstance(place, Redis | RedisCluster):
            self._line = _Given(place)
        else:
            raise InvalidValue("place", "redis://… or a client of redis.asyncio", place)
        self._set = f"{{{name}}}:sleep_until"
        self._prefix = f"{{{name}}}:document:"
        self._clock = clock or process_ms
        self._doubts = Doubts(self._clock)

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
        """Write a document, or write it anew; due at once unless `sleep_until` says when. A bad cron is refused."""
        check_interval(interval)
        due = self._clock() if sleep_until is None else instant_ms(sleep_until, "sleep_until")
        fields: list[Word] = ["data", msgspec.json.encode(data), "auto_remove", int(auto_remove)]
        if interval:
            fields += ["interval", interval]
        if repeat_until is not None:
            fields += ["repeat_until", instant_ms(repeat_until, "repeat_until")]
        await self._line.run(ADD, self._set, [self._prefix + _checked(id), id, due, *fields])

    # ------------------------------------------------------------------------------------------------ lock

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """The earliest that is due."""
        return next(iter(await self.lock_many(lock_until, 1)), None)

    async def lock_many(self, lock_until: datetime, most: int) -> list[CrontabJob]:
        """The earliest that are due, in one script."""
        lock = instant_ms(lock_until, "lock_until")
        args: list[Word] = [self._clock(), lock, min(most, MAX_PER_CALL), self._prefix]
        return [_job(found, lock_until) for found in await self._line.run(LOCK, self._set, args)]

    # ------------------------------------------------------------------------------------------------ finish

    async def update(self, id: str, changes: Changes, /) -> bool:
        """Write what is set, in one script."""
        auto_remove = "" if changes.auto_remove is UNSET else int(changes.auto_remove)
        words = [id, _fence(changes.locked_until), _sleep(changes.sleep_until), auto_remove, ""]
        return (await self._finish([(id, changes.locked_until)], words))[0]

    async def remove(self, id: str, /, *, locked_until: datetime | None = None) -> bool:
        """Delete, in one script."""
        return (await self._finish([(id, locked_until)], [id, _fence(locked_until), "", "", 1]))[0]

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """In one script; in several where there are very many."""
        answers: list[bool] = []
        keys = [(one.id, one.locked_until) for one in endings]
        with self._doubts.unless_answered(keys):
            for n in range(0, len(endings), MAX_PER_CALL):
                words: list[Word] = []
                for one in endings[n : n + MAX_PER_CALL]:
                    sleep_until = "" if one.remove else _sleep(one.sleep_until)
                    words += [one.id, _fence(one.locked_until), sleep_until, "", 1 if one.remove else ""]
                answers += await self._finish(keys[n : n + MAX_PER_CALL], words)
        return answers

    async def _finish(self, keys: Sequence[tuple[Word, datetime | None]], words: Sequence[Word]) -> list[bool]:
        with self._doubts.unless_answered(keys):
            answers = await self._line.run(FINISH, self._set, [self._prefix, *words])
        # 2: a first write, which was not answered, may have left it so.
        done = [answer == 1 or (answer == 2 and key in self._doubts) for key, answer in zip(keys, answers, strict=True)]
        self._doubts.settle((id, fence) for id, fence in keys if fence is not None)
        return done

    # ------------------------------------------------------------------------------------------------ the rest

    async def migrate(self) -> None:
        """The sorted set is the index."""

    async def close(self) -> None:
        """Close the connections that this store made."""
        await self._line.close()


class _Given:
    """A client of the user's, which stays open; what it raises in our words."""

    def __init__(self, client: Redis | RedisCluster) -> None:
        self._client: Any = client

    async def run(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        try:
            return await self._run(script, key, args)
        except (AwayError, LateError) as error:
            raise StoreUnavailable(f"Redis cannot be used now: {error}") from error
        except ResponseError as error:
            raise failure(str(error), "the client that was given") from error
        except RedisError as error:  # redis-py's own words for what a cluster says when nodes are lost
            raise StoreUnavailable(f"Redis cannot be used now: {error}") from error

    async def _run(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        run: Callable[..., Awaitable[Any]] = self._client.execute_command
        # Also a client that decodes must not fail on an id that is no text, when it is locked already.
        as_bytes = {NEVER_DECODE: True}
        try:
            return await run("EVALSHA", script.sha, 1, key, *args, **as_bytes)
        except NoScriptError:
            return await run("EVAL", script.source, 1, key, *args, **as_bytes)

    async def close(self) -> None:
        pass


def _checked(id: object) -> str:
    if not _is_text(id):
        raise InvalidValue("id", "a text that is not empty", id)
    return str(id)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _fence(locked_until: datetime | None) -> Word:
    return "" if locked_until is None else instant_ms(locked_until, "locked_until")


def _sleep(sleep_until: Any) -> Word:
    if sleep_until is UNSET:
        return ""
    return "null" if sleep_until is None else instant_ms(sleep_until, "sleep_until")


def _job(found: Sequence[Any], locked_until: datetime) -> CrontabJob:
    score, interval, repeat_until, auto_remove, data = (
        one.decode(errors="replace") if isinstance(one, bytes) else one for one in found[1:]
    )
    return CrontabJob(
        id=_id(found[0]),
        sleep_until=to_datetime(int(max(float(score), 0))),  # -inf is a score
        interval=rows.interval(interval),
        repeat_until=_until(repeat_until),
        auto_remove=auto_remove not in (None, "", "0"),
        data=_data(data),
        locked_until=locked_until,
    )


def _id(found: str | bytes) -> str | bytes:
    """As bytes where it is no text: by any other id it would not be found again."""
    try:
        return found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError:
        return found


def _until(text: str | None) -> Any:
    """What is no number is passed on."""
    if not text:
        return None
    try:
        return to_datetime(int(text))
    except ValueError:  # InvalidValue is one
        return text


def _data(text: str | None) -> Any:
    """Of a document that was written by hand, which may hold any text."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
