"""The link to the servers: a client for each event loop, its collections, and its errors in our words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.write_concern import WriteConcern

from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.mongo.url import Place
from jobmill.stores.mongo.values import CODEC

Document: TypeAlias = dict[str, Any]
Collection: TypeAlias = AsyncCollection[Document]

QUEUES, EVENTS, LOGS = "jobmill_queues", "jobmill_events", "jobmill_logs"

#: How long a call may take in all: finding a server, sending, and trying once more where that is safe. For pymongo this
#: takes the place of every other time limit, but for connecting.
CALL_MS = 10_000
CONNECT_MS = 5_000
CLOSE_S = 1.5

MAJORITY = WriteConcern(w="majority")
ONE = WriteConcern(w=1)

# Codes of a server that goes down, steps down or is not yet up: later it may work, here or elsewhere.
_AWAY = {
    *(6, 7, 64, 89, 91, 100, 112, 133, 189, 202, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436, 50, 24, 251, 246),
}
#: No transactions and no change streams there.
STANDALONE = {20, 40573}
DUPLICATE_KEY = 11000
#: The index that each collection has. What is asked for by _id names it, or other parts of the filter would have the
#: server try other indexes again and again.
BY_ID = "_id_"
TOO_LARGE = (10334, 17419, 17420)


class Connected:
    """A client, and the collections that the store uses through it."""

    def __init__(self, place: Place) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self.client: AsyncMongoClient[Document] = AsyncMongoClient(
                place.address,
                document_class=dict,
                connect=False,
                appname="jobmill",
                **_defaults(place.address),
            )
        except (ConfigurationError, InvalidURI, ValueError, TypeError) as error:
            raise InvalidValue("url", "options that pymongo has", place.url, str(error)) from error
        self.database: AsyncDatabase[Document] = self.client.get_database(
            place.database, codec_options=CODEC, write_concern=MAJORITY
        )
        #: Written to a majority: enqueues, settlements, changes; and claims, whose number (the fence) must not be given
        #: out again when the only member that knew of it is dead.
        self.jobs: Collection = self.database[place.collection]
        #: Written here: heartbeats and progress. Where one is lost, the lease ends sooner.
        self.beats: Collection = self.jobs.with_options(write_concern=ONE)
        self.queues: Collection = self.database[QUEUES]
        self.events: Collection = self.database[EVENTS]
        self.logs: Collection = self.database[LOGS]
        #: Held by the claim that looks for jobs.
        self.looking = asyncio.Lock()

    async def close(self) -> None:
        """Give all connections back. A server that does not answer is not waited for: then it is not asked again."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self.client.close()
                    return

    def abandon(self) -> None:
        """The loop does not run. A client cannot be closed without it: that is done if it ever runs again."""
        if not self._loop.is_closed():
            _abandoned.add(self)
            with contextlib.suppress(RuntimeError):  # closed in this moment
                self._loop.call_soon_threadsafe(self._close_later)

    def _close_later(self) -> None:
        task = self._loop.create_task(self.close(), name="close a client of MongoDB")
        task.add_done_callback(lambda _: _abandoned.discard(self))


_abandoned: set[Connected] = set()


def _defaults(address: str) -> dict[str, Any]:
    """What is not said in the URL."""
    said = address.partition("?")[2].lower()
    defaults = {"timeoutMS": CALL_MS, "connectTimeoutMS": CONNECT_MS}
    return {name: value for name, value in defaults.items() if f"{name.lower()}=" not in said}


class Link:
    """The clients of a place, one for each event loop."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._clients = PerLoop(lambda: Connected(place))

    def here(self) -> Connected:
        """That of the running loop."""
        return self._clients.here()

    async def close(self) -> None:
        """Give everything back, in all loops. Closing twice is harmless; what is called later connects again."""
        await self._clients.close()


@contextlib.contextmanager
def told_apart(place: Place) -> Iterator[None]:
    """Errors of pymongo as StoreUnavailable, when trying again later may work, or as StoreError."""
    try:
        yield
    except PyMongoError as error:
        raise translated(error, place) from error


def translated(error: PyMongoError, place: Place) -> StoreError:
    """An error of pymongo in our words."""
    if is_away(error):
        return StoreUnavailable(f"MongoDB at {place.url} cannot be used now: {_short(error)}")
    return StoreError(f"MongoDB at {place.url}: {_short(error)}")


def is_away(error: PyMongoError) -> bool:
    """Whether trying again later may work; nobody knows what has been done."""
    if error.timeout or isinstance(error, AutoReconnect | ConnectionFailure | WriteConcernError):
        return True
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        codes = [one.get("code") for one in details.get("writeErrors", ())]
        return bool(details.get("writeConcernErrors")) or any(code in _AWAY for code in codes)
    if isinstance(error, OperationFailure):
        return error.code in _AWAY or error.has_error_label("RetryableWriteError")
    return False


def _short(error: PyMongoError) -> str:
    if isinstance(error, BulkWriteError):
        # Not the whole text, in which the statement stands with all that was to be written.
        details = error.details or {}
        said = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        return next((str(one.get("errmsg")) for one in said), type(error).__name__)[:300]
    # Behind it pymongo writes all that it knows of all servers.
    text = str(error).partition(", Topology Description:")[0]
    return text if len(text) <= 300 else f"{text[:299]}…"
