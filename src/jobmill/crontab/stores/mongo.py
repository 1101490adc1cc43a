"""Documents of a MongoDB collection, shared with mongodb-cron. Only the date is written.

The query is `sleepUntil <= now`, sorted, over a sparse index: an idle poll reads no document.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from msgspec import UNSET, Struct, structs
from pymongo import DeleteMany, DeleteOne, ReadPreference, ReturnDocument, UpdateMany, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from jobmill.core.durations import EPOCH, instant_ms, to_datetime
from jobmill.crontab.job import CrontabJob
from jobmill.crontab.stores import rows
from jobmill.crontab.stores.base import DocumentStore, Write
from jobmill.crontab.stores.field_paths import FieldPath
from jobmill.crontab.stores.uncertain_writes import UncertainWrites
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from jobmill.stores.mongo.connection import BY_ID, is_unavailable, short

Document: TypeAlias = dict[str, Any]

#: Only its lock distinguishes a batch from the batch of another worker. So each worker has a mark, and its locks are
#: congruent to the mark: they are longer by up to a tenth, less than a second, and by at least a twentieth of that, to
#: differ from locks of mongodb-cron. Measured with a new mark per batch: four busy workers collided within seconds.
SPREAD, GAP = 10, 20
MAX_SPREAD_MS = 1_000
#: After two workers wrote the same lock, this number of turns lock one document at a time, which is always safe.
SINGLE_TURNS = 10
#: Error codes of a server that has a different index with these keys or this name.
_OTHER_INDEX = (85, 86)


class _LockedBatch(Struct, frozen=True):
    """The documents that one update has locked: id and previous date, by key."""

    before: dict[Any, Document]
    lock: datetime
    count: int


class MongoCrontab(DocumentStore):
    """A collection of the user, with its write concern and codec. The user closes the client. Needs MongoDB 4.4.

    Field names may be paths with dots. `condition` is a filter that documents must also match.
    """

    def __init__(
        self,
        collection: AsyncCollection[Any],
        *,
        sleep_until: str = "sleepUntil",
        interval: str = "interval",
        repeat_until: str = "repeatUntil",
        auto_remove: str = "autoRemove",
        condition: Mapping[str, Any] | None = None,
        clock: Callable[[], int] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(clock)
        self._collection = _readable(collection)
        self._sleep_until = FieldPath(sleep_until, "sleep_until")
        self._only_date = {self._sleep_until.projected: 1}
        self._interval = FieldPath(interval, "interval")
        self._repeat_until = FieldPath(repeat_until, "repeat_until")
        self._auto_remove = FieldPath(auto_remove, "auto_remove")
        if condition is not None and not isinstance(condition, Mapping):
            raise InvalidValue("condition", 'a filter such as {"kind": "mail"}', condition)
        self._condition = condition
        self._chance = chance
        self._mark, self._marked_by = self._new_mark(), os.getpid()
        self._single_turns = 0
        #: Several crontabs may share this store and its mark, so only one batch is locked at a time.
        self._turn = asyncio.Lock()
        #: A batch that was locked but could not be read back.
        self._unread: _LockedBatch | None = None
        self._uncertain = UncertainWrites(self._clock)

    # ------------------------------------------------------------------------------------------------ lock

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due documents: find them, lock them in one update, and read those that have the lock."""
        with self._translated_errors():
            if limit == 1:
                return await self._lock_one(lock_until)
            async with self._turn:
                if (unread := self._take_unread(lock_until, limit)) is not None:
                    return await self._read_locked(unread)
                if self._single_turns:
                    self._single_turns -= 1
                    return await self._lock_one(lock_until)
                return await self._lock_batch(lock_until, limit)

    async def _lock_batch(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        path = self._sleep_until.text
        now = to_datetime(self._clock())
        lock_until = self._marked_lock(lock_until, now)
        due = self._collection.find(
            self._due(now), self._only_date, sort=[(path, 1)], limit=limit, batch_size=limit + 1
        )
        before = {_key(one["_id"]): one async for one in due}
        if not before:
            return []
        locked = await self._collection.update_many(
            {"$and": [{"_id": _ids(before)}, self._due(now)]}, {"$set": {path: lock_until}}, hint=BY_ID
        )
        if not locked.matched_count:
            # Other workers locked all of them meanwhile. More may be due: findAndModify cannot miss one.
            return await self._lock_one(lock_until)
        return await self._read_locked(_LockedBatch(before, lock_until, locked.matched_count))

    def _take_unread(self, lock_until: datetime, limit: int) -> _LockedBatch | None:
        """The unread batch, if it fits the limit and at least half of its lock time is left."""
        if self._unread is None or len(self._unread.before) > limit:
            return None
        batch, self._unread = self._unread, None
        now = to_datetime(self._clock())
        return batch if batch.lock - now >= (lock_until - now) / 2 else None

    async def _read_locked(self, batch: _LockedBatch) -> list[CrontabJob]:
        """Read the documents that an update has locked.

        A lock does not name its owner. If another worker wrote the same millisecond, more documents have the lock than
        the update matched. Then the owner is unknown, and the documents wait until the lock ends.
        """
        which = {"_id": _ids(batch.before), self._sleep_until.text: batch.lock}
        try:
            own = self._collection.find(which, hint=BY_ID, batch_size=len(batch.before) + 1)
            found = {_key(one["_id"]): one async for one in own}
        except (PyMongoError, asyncio.CancelledError):
            self._unread = batch
            raise
        if len(found) > batch.count:
            self._single_turns = SINGLE_TURNS
            self._mark = self._new_mark()
            return []
        return [
            self._job(self._sleep_until.put(found[key], self._sleep_until.pick(old)), batch.lock)
            for key, old in batch.before.items()
            if key in found
        ]

    async def _lock_one(self, lock_until: datetime) -> list[CrontabJob]:
        """Lock the earliest due document, in one findAndModify."""
        path = self._sleep_until.text
        found = await self._collection.find_one_and_update(
            self._due(to_datetime(self._clock())),
            {"$set": {path: lock_until}},
            sort=[(path, 1)],
            return_document=ReturnDocument.BEFORE,
        )
        return [] if found is None else [self._job(found, lock_until)]

    def _marked_lock(self, lock_until: datetime, now: datetime) -> datetime:
        if self._marked_by != os.getpid():  # a forked process has the mark of its parent
            self._mark, self._marked_by = self._new_mark(), os.getpid()
        until_ms = instant_ms(lock_until, "lock_until")
        spread_ms = min(max((until_ms - instant_ms(now, "now")) // SPREAD, 0), MAX_SPREAD_MS)
        least_ms = until_ms + spread_ms // GAP
        width = max(spread_ms - spread_ms // GAP, 1)
        found = to_datetime(least_ms + (self._mark - least_ms) % width)
        if self._uncertain.has_fence(found):
            # The retry of an older ending must not match this lock.
            self._mark = self._new_mark()
        return to_datetime(least_ms + (self._mark - least_ms) % width)

    def _new_mark(self) -> int:
        return int(self._chance() * 1_000_000)

    def _due(self, now: datetime) -> Document:
        """MongoDB compares only dates with a date, and lists of dates. A list cannot be set, so it is excluded."""
        parts: list[Mapping[str, Any]] = [{self._sleep_until.text: {"$lte": now}}]
        parts += [{text: {"$not": {"$type": "array"}}} for text in self._sleep_until.parents]
        if self._condition:
            parts.append(self._condition)
        return {"$and": parts}

    # ------------------------------------------------------------------------------------------------ finish

    async def _write(self, writes: Sequence[Write]) -> list[bool]:
        """One command per kind of write. Documents with the same lock and the same changes share one statement."""
        if not writes:
            return []
        removals = sum(write.remove for write in writes)
        with self._translated_errors(), self._uncertain.remember_on_error(writes):
            written = await self._collection.bulk_write(list(self._operations(writes)), ordered=False)
            counts, all_matched = (written.matched_count, written.deleted_count), (len(writes) - removals, removals)
            if counts not in (all_matched, (0, 0)) or any(write in self._uncertain for write in writes):
                # A bulk write does not return which documents matched.
                return await self._are_so(writes)
        return [counts == all_matched] * len(writes)

    def _operations(self, writes: Sequence[Write]) -> Iterator[UpdateOne | UpdateMany | DeleteOne | DeleteMany]:
        path = self._sleep_until.text
        ids_by_write: dict[Write, list[Any]] = {}
        for write in writes:
            ids_by_write.setdefault(structs.replace(write, id=None), []).append(write.id)
        for write, ids in ids_by_write.items():
            is_one = len(ids) == 1  # the driver retries only operations on one document
            which: Document = {"_id": ids[0] if is_one else {"$in": ids}}
            if write.locked_until is not None:
                which[path] = write.locked_until
            if write.remove:
                yield (DeleteOne if is_one else DeleteMany)(which, hint=BY_ID)
                continue
            fields = {path: write.sleep_until, self._auto_remove.text: write.auto_remove}
            fields = {name: value for name, value in fields.items() if value is not UNSET}
            # Without an upsert, $setOnInsert changes nothing.
            changes = {"$set": fields} if fields else {"$setOnInsert": {path: None}}
            yield (UpdateOne if is_one else UpdateMany)(which, changes, hint=BY_ID)

    async def _are_so(self, writes: Sequence[Write]) -> list[bool]:
        """Whether each document is in the state that its write requests."""
        ids = {"$in": [write.id for write in writes]}
        found = {
            _key(one["_id"]): _date(self._sleep_until.pick(one))
            async for one in self._collection.find({"_id": ids}, self._only_date, hint=BY_ID)
        }
        return [
            _key(write.id) not in found if write.remove else found.get(_key(write.id), EPOCH) == write.sleep_until
            for write in writes
        ]

    # ------------------------------------------------------------------------------------------------ the rest

    async def migrate(self) -> None:
        """Create the sparse index that mongodb-cron recommends, unless another index does the same."""
        path = self._sleep_until.text
        with self._translated_errors():
            try:
                await self._collection.create_index([(path, 1)], sparse=True)
            except OperationFailure as error:
                if error.code not in _OTHER_INDEX:
                    raise
                others = (await self._collection.index_information()).values()
                if not any(one["key"][0][0] == path and "partialFilterExpression" not in one for one in others):
                    await self._collection.create_index([(path, 1)], sparse=True, name=f"{path}_crontab")

    def _job(self, found: Document, locked_until: datetime) -> CrontabJob:
        until = self._repeat_until.pick(found)
        return rows.job(
            found["_id"],
            sleep_until=_date(self._sleep_until.pick(found)),
            interval=self._interval.pick(found),
            repeat_until=_date(until) or rows.date(until),
            auto_remove=self._auto_remove.pick(found),
            data=found,
            locked_until=locked_until,
        )

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of pymongo into StoreUnavailable, if a retry may succeed, or StoreError."""
        try:
            yield
        except PyMongoError as error:
            where = f"MongoDB's collection {self._collection.full_name}"
            if is_unavailable(error):
                raise StoreUnavailable(f"{where} cannot be used now: {short(error)}") from error
            raise StoreError(f"{where}: {short(error)}") from error


def _readable(collection: Any) -> AsyncCollection[Any]:
    """The collection with options that can read dates of any year, and that read from the primary."""
    if not isinstance(collection, AsyncCollection):
        advice = 'AsyncMongoClient(…)["database"]["collection"]; the blocking MongoClient and Motor do not work'
        raise InvalidValue("collection", "a collection of pymongo's AsyncMongoClient", collection, advice)
    if not collection.write_concern.acknowledged:
        raise InvalidValue(
            "collection",
            "a write concern that is acknowledged",
            collection.write_concern,
            "without it, a lock could be lost",
        )
    codec = collection.codec_options
    if codec.datetime_conversion == DatetimeConversion.DATETIME:
        codec = codec.with_options(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
    if codec.unicode_decode_error_handler == "strict":  # one invalid text would fail the whole batch
        codec = codec.with_options(unicode_decode_error_handler="replace")
    if issubclass(codec.document_class, RawBSONDocument):  # it is read-only, and the previous date must be set
        codec = codec.with_options(document_class=dict)
    # Locked documents are read back at once, and a secondary or a majority may not have the write yet.
    return collection.with_options(
        codec_options=codec, read_preference=ReadPreference.PRIMARY, read_concern=ReadConcern("local")
    )


def _date(value: Any) -> datetime | None:
    """A date of MongoDB, limited to the years of Python."""
    if isinstance(value, DatetimeMS):
        return rows.instant_of_ms(int(value))
    return rows.instant(value) if isinstance(value, datetime) else None


def _ids(documents: Mapping[Any, Document]) -> Document:
    return {"$in": [one["_id"] for one in documents.values()]}


def _key(id: Any) -> Any:
    """A hashable key for an id. A document is not hashable, and MongoDB distinguishes True from 1."""
    try:
        hash(id)
    except TypeError:
        return (dict, repr(id))
    return (bool, id) if isinstance(id, bool) else id
