"""Talking to the servers: one client for each event loop, its collections, and pymongo's errors turned into ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.synchronous.client_session import ClientSession
from pymongo.write_concern import WriteConcern

from jobmill.errors import InvalidValue, LoginRefused, StoreError, StoreUnavailable
from jobmill.stores.mongo.codec import CODEC, Document
from jobmill.stores.mongo.url import MongoUrl

Collection: TypeAlias = AsyncCollection[Document]

QUEUES, EVENTS, LOGS, RUNS = "jobmill_queues", "jobmill_events", "jobmill_logs", "jobmill_runs"
WORKERS, TALLIES, AUDIT = "jobmill_workers", "jobmill_tallies", "jobmill_audit"
EDGES, STAGES, STEPS = "jobmill_edges", "jobmill_stages", "jobmill_steps"
TAKEN_KEYS = "jobmill_taken_keys"
LANES = "jobmill_lanes"

#: The time limit of a whole call: finding a server, sending, and one retry where that is safe. In pymongo it replaces
#: every other time limit except the one for connecting.
CALL_MS = 10_000
CONNECT_MS = 5_000
CLOSE_SECONDS = 1.5

MAJORITY = WriteConcern(w="majority")
ONE = WriteConcern(w=1)
#: Without a response.
NONE = WriteConcern(w=0)

# Codes of a server that shuts down, steps down or is still starting: a retry may work, there or on another server.
_UNAVAILABLE = {
    *(6, 7, 64, 89, 91, 100, 112, 133, 189, 202, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436, 50, 24, 251, 246),
    14031,  # out of disk space
}
#: Codes of a server that is in no replica set, so it has neither transactions nor change streams.
STANDALONE = {20, 40573}
DUPLICATE_KEY = 11000
TOO_LARGE = (10334, 17419, 17420)
#: The index that each collection has. Queries by _id name it; otherwise the server would try other indexes again and
#: again because of the rest of the filter.
BY_ID = "_id_"


class MongoConnection:
    """The client of one event loop, and the collections that the store uses through it."""

    def __init__(self, url: MongoUrl) -> None:
        self._loop = asyncio.get_running_loop()
        given = url.driver_url.partition("?")[2].lower()
        defaults: dict[str, Any] = {"timeoutMS": CALL_MS, "connectTimeoutMS": CONNECT_MS}
        missing = {name: value for name, value in defaults.items() if f"{name.lower()}=" not in given}
        try:
            self.client: AsyncMongoClient[Document] = AsyncMongoClient(
                url.driver_url, document_class=dict, connect=False, appname="jobmill", **missing
            )
        except (ConfigurationError, InvalidURI, ValueError, TypeError) as error:
            raise InvalidValue("url", "options that pymongo has", url.shown, str(error)) from error
        self.database: AsyncDatabase[Document] = self.client.get_database(
            url.database, codec_options=CODEC, write_concern=MAJORITY
        )
        #: Written to a majority: enqueues, settlements and changes; also claims, because the number of claims (the
        #: fence) must not be used twice when the only member that knew of it is lost.
        self.jobs: Collection = self.database[url.collection]
        #: Written to one member: heartbeats and progress. If one is lost, the lease ends sooner.
        self.heartbeats: Collection = self.jobs.with_options(write_concern=ONE)
        self.queues: Collection = self.database[QUEUES]
        self.events: Collection = self.database[EVENTS]
        self.logs: Collection = self.database[LOGS]
        self.runs: Collection = self.database.get_collection(RUNS, write_concern=ONE)
        self.workers: Collection = self.database.get_collection(WORKERS, write_concern=ONE)
        self.tallies: Collection = self.database.get_collection(TALLIES, write_concern=ONE)
        self.audit: Collection = self.database[AUDIT]
        #: Jobs that wait for jobs, and calls that enqueue them: see edges.py and stages.py. Results of steps.
        self.edges: Collection = self.database[EDGES]
        self.stages: Collection = self.database[STAGES]
        self.steps: Collection = self.database[STEPS]
        #: Unique keys that stay taken for a time: see taken_keys.py.
        self.taken_keys: Collection = self.database[TAKEN_KEYS]
        #: Settings and rates of lanes: see lane_settings.py.
        self.lanes: Collection = self.database[LANES]
        #: Held by the claim that searches for jobs.
        self.searching = asyncio.Lock()
        #: Held by the call that gives slots of lanes to jobs.
        self.filling = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections. A server that does not respond gets a second and a half, twice."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.client.close()
                    return

    def abandon(self) -> None:
        """The loop does not run, and a client cannot be closed without it: close it if the loop ever runs again."""
        if not self._loop.is_closed():
            _abandoned.add(self)
            with contextlib.suppress(RuntimeError):  # the loop was closed at this moment
                self._loop.call_soon_threadsafe(self._close_later)

    def _close_later(self) -> None:
        task = self._loop.create_task(self.close(), name="close a client of MongoDB")
        task.add_done_callback(lambda _: _abandoned.discard(self))


_abandoned: set[MongoConnection] = set()


class BoundCollection:
    """A collection outside any transaction, or in a session of the caller, which may be without a loop."""

    def __init__(self, collection: Any, session: Any = None) -> None:
        self._collection, self._session = collection, session

    @property
    def is_in_session(self) -> bool:
        """Whether what is written here exists only when a caller commits."""
        return self._session is not None

    async def find(self, query: Document, projection: Document | None = None) -> list[Document]:
        """All that match."""
        found = await in_session(
            self._session, lambda: self._collection.find(query, projection, session=self._session).to_list()
        )
        return list(found)

    async def insert(self, document: Any) -> bool:
        """Insert a document; whether no unique index refused it. In a session, a refusal ends the transaction."""
        try:
            await in_session(self._session, lambda: self._collection.insert_one(document, session=self._session))
        except DuplicateKeyError:
            if self._session is not None:
                raise
            return False
        return True

    async def update(self, query: Document, update: Document, *, upsert: bool = False) -> bool:
        """Change one, or insert it (`upsert`); whether one matched."""
        done = await in_session(
            self._session,
            lambda: self._collection.update_one(query, update, upsert=upsert, session=self._session),
        )
        return bool(done.matched_count)

    async def delete(self, query: Document) -> None:
        """Delete all that match."""
        await in_session(self._session, lambda: self._collection.delete_many(query, session=self._session))


async def in_session(session: Any, call: Callable[[], Any]) -> Any:
    """Make a call of pymongo; in a thread where the session is one without an event loop."""
    return await (asyncio.to_thread(call) if isinstance(session, ClientSession) else call())


#: AuthenticationFailed, and what Atlas answers.
_LOGIN = (18, 8000)


@contextlib.contextmanager
def translated_errors(url: MongoUrl) -> Iterator[None]:
    """Errors of pymongo as StoreUnavailable, where a later retry may work, or as StoreError."""
    try:
        yield
    except PyMongoError as error:
        if isinstance(error, OperationFailure) and error.code in _LOGIN:
            raise LoginRefused(f"MongoDB at {url.shown}: login refused: {short(error)}") from error
        if is_unavailable(error):
            raise StoreUnavailable(f"MongoDB at {url.shown} cannot be used now: {short(error)}") from error
        raise StoreError(f"MongoDB at {url.shown}: {short(error)}") from error


def is_unavailable(error: PyMongoError) -> bool:
    """Whether a later retry may work. It is not known whether the failed call has changed anything."""
    if error.timeout or isinstance(error, AutoReconnect | ConnectionFailure | WriteConcernError):
        return True
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        codes = [one.get("code") for one in details.get("writeErrors", ())]
        return bool(details.get("writeConcernErrors")) or any(code in _UNAVAILABLE for code in codes)
    if isinstance(error, OperationFailure):
        return error.code in _UNAVAILABLE or error.has_error_label("RetryableWriteError")
    return False


def refused_writes(
    error: BulkWriteError, codes: tuple[int, ...] = (*TOO_LARGE, DUPLICATE_KEY), checked: int | None = None
) -> dict[int, str]:
    """Why the server refused writes of a bulk, by their index.

    Raises the error again where the bulk, or one of the first `checked` writes, failed for another reason than these
    codes. None: all writes are checked.
    """
    details: Document = error.details or {}  # type: ignore[assignment]
    errors = details.get("writeErrors", [])
    others = [one["index"] for one in errors if one["code"] not in codes]
    if details.get("writeConcernErrors") or any(checked is None or index < checked for index in others):
        raise error
    return {one["index"]: str(one["errmsg"]) for one in errors if one["code"] not in _UNAVAILABLE}


def short(error: PyMongoError) -> str:
    """The message of an error, without values of the user and without a list of all servers."""
    if isinstance(error, BulkWriteError):
        # Not the whole text: it contains the statement with all values.
        details = error.details or {}
        reasons = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        return next((str(one.get("errmsg")) for one in reasons), type(error).__name__)[:300]
    # After it pymongo writes all that it knows about all servers.
    text = str(error).partition(", Topology Description:")[0]
    return text if len(text) <= 300 else f"{text[:299]}…"


class _ShortLines(logging.Filter):
    """Log in one line that pymongo could not reach a server in the background, for example to close a cursor.

    Nothing depends on that, and calls that need the server report it themselves.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, PyMongoError) and is_unavailable(error):
            record.msg, record.args = f"{record.getMessage()} {short(error)}", ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


logging.getLogger("pymongo.client").addFilter(_ShortLines())
