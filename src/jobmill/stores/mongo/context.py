"""The context that every verb gets: the connection of the running loop, the clock, and what the store remembers."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from bson import ObjectId
from pymongo.errors import OperationFailure

from jobmill.core.job import Job
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.claim_cursor import ClaimCursor, Order
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.common.server_clock import ServerClock
from jobmill.stores.mongo.codec import CODEC, LIVE, Document, id_of, is_known, job_of, ms_of
from jobmill.stores.mongo.connection import MongoConnection
from jobmill.stores.mongo.hints import EndPoll
from jobmill.stores.mongo.ids import object_id
from jobmill.stores.mongo.url import MongoUrl
from jobmill.stores.mongo.wake import ChangeStream

T = TypeVar("T")
log = logging.getLogger("jobmill")

MAX_REPORTED = 1_000
#: For lanes: which job has joined the lane is not known; and none has.
ANY_PRIORITY, NO_PRIORITY = float("-inf"), float("inf")
#: The code for a hint that names no index.
BAD_VALUE = 2


def live_with(keys: Collection[tuple[str, str]]) -> Document:
    """A filter for live jobs with these names and unique keys. With several, other pairs of both match too."""
    names, unique_keys = {name for name, _ in keys}, {key for _, key in keys}
    return {"name": {"$in": [*names]}, "uniqueKey": {"$in": [*unique_keys]}, "status": {"$in": LIVE}}


def with_ids(ids: Collection[str]) -> Document:
    """A filter for jobs with these ids."""
    known = [object_id(id) for id in ids if object_id(id) is not None]
    return {"$or": [{"_id": {"$in": known}}, {"jobmill.id": {"$in": list(ids)}}]}


#: MongoDB keeps the index entries of claimed jobs for this time, and each scan from the start walks over them.
ENTRIES_KEPT_SECONDS = 300.0
#: A process that has claimed fewer jobs in that time always begins at the start: such a scan is short.
MIN_CLAIMS = 2_000
#: A process that loses jobs to others skips at most this many times the number of jobs that it searches for. Measured
#: with four processes that search for 100 no-op jobs at a time: they get 83 % of the jobs that they find, without jumps
#: 53 %. With 16 it is 80 %, with 128 it is 89 %; but then the server reads 10 jobs for each that is claimed, not 6.
MAX_JUMP = 32
#: Scans from the start take at most one part in this many of the time: for jobs that wait, and for ended leases.
SCAN_SHARE = 20


class ClaimMemory:
    """What the claims of one process remember of each other."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._monotonic, self._chance = monotonic, chance
        self.cursor = ClaimCursor(monotonic, share=SCAN_SHARE, share_when_short=SCAN_SHARE)
        #: By _id: order and name of the jobs that a claim in flight is about to lease. Other claims leave them out.
        self.in_flight: dict[Any, tuple[Order, str]] = {}
        #: The _ids of jobs that the server refuses to write a claim to, or that only Monque can run.
        self.refused: set[Any] = set()
        #: Whether other processes took at least half of the jobs that the last claim had found.
        self.others_are_faster = False
        #: The queues where they did while more jobs waited than a claim takes. Its claims use the cursor, and may jump.
        self.contested: set[str] = set()
        #: By queue, as documents name it: when ended leases were searched for, and how long that took.
        self.ended_searches: dict[str | None, tuple[float, float]] = {}
        #: When claims search for jobs without a priority again.
        self.rank_at = 0.0
        #: When stale claims of Monque are searched for next.
        self.stale_from_ms = 0
        #: When recurring jobs that Monque ended are searched for next.
        self.rearm_from_ms = 0
        # How many jobs were claimed in this interval of ENTRIES_KEPT_SECONDS, and in the interval before.
        self._claims = self._claims_before = 0
        self._interval_ends = 0.0

    def count(self, claims: int) -> None:
        """Count jobs that were claimed."""
        now = self._monotonic()
        if now >= self._interval_ends:
            self._claims_before = self._claims if now < self._interval_ends + ENTRIES_KEPT_SECONDS else 0
            self._claims, self._interval_ends = 0, now + ENTRIES_KEPT_SECONDS
        self._claims += claims

    def compete(self, queue: str, found: int, leased: int, *, has_more: bool) -> None:
        """Learn how many jobs a claim of a queue has found, and how many of these it got before other processes."""
        self.others_are_faster = 2 * leased <= found
        if self.others_are_faster and has_more:
            self.contested.add(queue)

    def jump(self, queue: str, limit: int) -> int:
        """How many jobs a search for `limit` jobs skips, because other processes are about to take them."""
        has_lost = self.others_are_faster and queue in self.contested
        return 1 + int(self._chance() * MAX_JUMP * limit) if has_lost else 0

    @property
    def is_busy(self) -> bool:
        """Whether a scan from the start is long, because of the jobs that were claimed in the last minutes."""
        return self._claims + self._claims_before >= MIN_CLAIMS


class FlowMemory:
    """What this process remembers of edges."""

    def __init__(self) -> None:
        #: When edges are searched next, and the _id of the last one that was.
        self.sweep_from_ms = 0
        self.swept_to: Document | None = None
        #: Whether Monque may have ended jobs that others wait for.
        self.has_ended = False
        #: The _ids of notes that this process has left because the server became unavailable.
        self.left_notes: set[ObjectId] = set()


class LaneMemory:
    """What this process remembers of lanes."""

    def __init__(self) -> None:
        #: By queue and lane: a call has changed jobs of these lanes, so that slots may be free. The value is the
        #: smallest priority of jobs that have joined the lane; they may be more urgent than jobs with slots.
        self.changed: dict[tuple[str, str], float] = {}
        #: Whether Monque may have ended jobs that had slots.
        self.has_ended = False
        #: When `lane_walk.heal` may search for such slots again because of that.
        self.heal_from_ms = 0
        #: Queue and lane that were searched last for slots that nobody has given on.
        self.healed_to: tuple[str, str] | None = None

    def touch(self, queue: str, lane: str | None, priority: float = ANY_PRIORITY) -> None:
        """A job of this lane has changed: `lanes.fill` looks at the lane. `priority`: of a job that has joined it."""
        if lane is not None:
            self.changed[queue, lane] = min(priority, self.changed.get((queue, lane), NO_PRIORITY))


class MongoContext:
    """What the verbs of one store share."""

    def __init__(self, url: str, clock: Callable[[], int] | None = None) -> None:
        self.url = MongoUrl.read(url)
        self.clock = ServerClock(clock)
        self.connections = PerLoop(lambda: MongoConnection(self.url))
        self.streams = PerLoop(lambda: ChangeStream(self))
        self.end_polls = PerLoop(lambda: EndPoll(self))
        self.bell = Bell()
        #: By queues: how often they had been rung when the last claim of these queues began.
        self.seen_rings: dict[tuple[str, ...], int] = {}
        self.claims = ClaimMemory()
        self.flows = FlowMemory()
        self.lanes = LaneMemory()
        #: The indexes that exist: a query that names one is not planned anew.
        self.indexes: set[str] = set()
        #: The names that workers of this process claim.
        self.names: set[str] = set()
        #: Which numbers of which queues were large in the last call of `depths`.
        self.large_depths: set[tuple[str, str]] = set()
        self.is_standalone = False
        self._reported: set[ObjectId] = set()

    @property
    def here(self) -> MongoConnection:
        """The connection of the running loop."""
        return self.connections.here()

    def now(self) -> int:
        """The server's time in milliseconds."""
        return self.clock.now()

    async def measure_clock(self) -> Document:
        """Ask the server for its time; the whole response."""
        started = self.clock.start()
        response: Document = await self.here.database.command("hello", codec_options=CODEC)
        server_ms = ms_of(response.get("localTime"))
        if server_ms is not None:
            self.clock.learn(server_ms, started)
        return response

    async def hinted(self, index: str, query: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """Run a query with an index as its hint; without, where the index does not exist."""
        hint = {"hint": index} if index in self.indexes else {}
        try:
            return await query(hint)
        except OperationFailure as error:
            if not hint or error.code != BAD_VALUE:
                raise
            self.indexes.discard(index)  # it was dropped
            return await query({})

    async def find_by(self, index: str, query: Document, shown: Document, limit: int, **more: Any) -> list[Document]:
        """The first jobs that match, found by an index."""
        find = partial(self.here.jobs.find, query, shown, limit=limit, batch_size=limit + 1, **more)
        return await self.hinted(index, lambda hint: find(**hint).to_list())

    def queue_field(self, queue: str) -> str | None:
        """The value of `jobmill.queue` in the documents of a queue."""
        return None if queue == self.url.queue else queue

    def job(self, document: Document, *, strict: bool = False) -> Job:
        """A document as a job; see `job_of`."""
        return job_of(document, self.url, strict=strict)

    async def by_ids(self, ids: Sequence[str], projection: Document | None = None) -> dict[str, Document]:
        """The documents of these jobs."""
        object_ids = [known for id in ids if (known := object_id(id)) is not None]
        own_ids = [id for id in ids if object_id(id) is None]
        found: dict[str, Document] = {}
        for field, values in (("_id", object_ids), ("jobmill.id", own_ids)):
            if values:
                async for document in self.here.jobs.find({field: {"$in": values}}, projection):
                    if is_known(document):
                        found[id_of(document)] = document
        return found

    async def live_owners(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The ids of the live jobs that have these names and unique keys."""
        if not keys:
            return {}
        live = live_with(keys) | {"jobmill.staged": None}
        owners = self.here.jobs.find(live, {"name": 1, "uniqueKey": 1, "jobmill.id": 1})
        return {(one["name"], one["uniqueKey"]): id_of(one) async for one in owners}

    def report_once(self, document: Document, why: str, fate: str = "will never run") -> None:
        """Log, once, that a job will never run, or another `fate`."""
        if document["_id"] not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(document["_id"])
            log.warning("the job %s in %s %s: %s", document["_id"], self.url.address, fate, why)
