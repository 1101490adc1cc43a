"""What the claims of one process remember of each other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from bson import ObjectId

from jobmill.stores.common.claim_cursor import ClaimCursor, Position, Start
from jobmill.stores.mongo.codec import Document, ms_of
from jobmill.stores.mongo.ids import NO_ID

#: MongoDB keeps the index entries of claimed jobs for this time, and each scan from the start walks over them.
ENTRIES_KEPT_SECONDS = 300.0
#: A process that has claimed fewer jobs in that time always begins at the start: such a scan is short.
MIN_CLAIMS = 2_000
MAX_REFUSED = 1_000
#: While jobs that wait fill every claim, ended leases are searched for at this interval.
ENDED_SECONDS = 0.5
#: Scans from the start take at most one part in this many of the time: for jobs that wait, and for ended leases.
SCAN_SHARE = 20


class ClaimMemory:
    """Positions of the claim cursor, jobs that claims in flight are about to lease, and when to search again."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.cursor = ClaimCursor(monotonic, share=SCAN_SHARE, share_when_short=SCAN_SHARE)
        #: Jobs that a claim in flight is about to lease; the queries of other claims leave them out.
        self.in_flight: dict[ObjectId, Document] = {}
        #: Jobs that the server refuses to write a claim to.
        self.refused: set[ObjectId] = set()
        #: Whether another process took a job that the last claim had found.
        self.others_are_faster = False
        #: When stale claims of Monque are searched for next.
        self.stale_from_ms = 0
        self._ended: dict[str, tuple[float, float]] = {}
        # How many jobs were claimed in this interval of ENTRIES_KEPT_SECONDS, and in the interval before.
        self._claims = self._claims_before = 0
        self._interval_ends = 0.0

    @contextlib.contextmanager
    def leasing(self, documents: Sequence[Document]) -> Iterator[None]:
        """Other claims leave these jobs alone within the block."""
        self.in_flight |= {document["_id"]: document for document in documents}
        try:
            yield
        except BaseException:
            self.cursor.rewind()  # some of them may still wait
            raise
        finally:
            self.let_go(documents)

    def let_go(self, documents: Sequence[Document]) -> None:
        """Other claims may take these jobs again."""
        for document in documents:
            self.in_flight.pop(document["_id"], None)

    def refuse(self, document: Document) -> None:
        """Leave a job alone from now on."""
        if len(self.refused) < MAX_REFUSED:
            self.refused.add(document["_id"])

    def count(self, claims: int) -> None:
        """Count jobs that were claimed."""
        now = self._monotonic()
        if now >= self._interval_ends:
            self._claims_before = self._claims if now < self._interval_ends + ENTRIES_KEPT_SECONDS else 0
            self._claims, self._interval_ends = 0, now + ENTRIES_KEPT_SECONDS
        self._claims += claims

    @property
    def is_busy(self) -> bool:
        """Whether a scan from the start is long, because of the jobs that were claimed in the last minutes."""
        return self._claims + self._claims_before >= MIN_CLAIMS

    def ended_is_due(self, queue: str, *, full: bool) -> bool:
        """Whether to search for ended leases in a queue; `full`: jobs that wait fill the claim already."""
        searched, took = self._ended.get(queue, (0.0, 0.0))
        pause = SCAN_SHARE * took if self.is_busy else 0.0
        return self._monotonic() - searched >= (max(ENDED_SECONDS, pause) if full else pause)

    def ended_searched(self, queue: str, began: float) -> None:
        """Ended leases of a queue were searched for, from `began` on."""
        now = self._monotonic()
        self._ended[queue] = (now, now - began)

    def learn(
        self,
        queue: str,
        start: Start,
        found: Sequence[Document],
        limit: int,
        taken: Collection[Any],
        others: Mapping[Any, Document],
    ) -> None:
        """Give the cursor the position of each range: its first job that was found and may still wait.

        `taken`: the _ids that this claim is about to lease; `others`: the jobs that other claims are about to lease.
        """
        last = order_of(found[-1]) if len(found) == limit else None
        ranges: dict[tuple[str, str, float], Position] = {}
        still_waiting = set()
        for document in (*found, *others.values()):
            priority, due_ms, id = order_of(document)
            range = (queue, document["name"], priority)
            if range[:2] not in start.positions or not _has_position(document):
                continue
            # Where thousands of jobs have the same due time, the id counts.
            position = (due_ms, id if last is not None and last[1] == due_ms else NO_ID)
            ranges[range] = min(position, ranges.get(range, position))
            if document["_id"] not in taken and document["_id"] not in others:
                still_waiting.add(range)
        known = {(*one, priority) for one, positions in start.positions.items() for priority in positions}
        used_up = {one for one in known | ranges.keys() if last is not None and one[2] < last[0]} - still_waiting
        claimed = [(*range, position) for range, position in ranges.items() if range not in used_up]
        self.cursor.learn(start, claimed, full=last is not None, used_up=used_up)


def order_of(document: Document) -> tuple[float, int, ObjectId]:
    """Where a job stands in claim order; a job without a priority comes after those that have one."""
    priority, id = document.get("priority"), document["_id"]
    rank = -priority if _is_number(priority) else float("inf")
    return rank, ms_of(document.get("nextRunAt")) or 0, id if isinstance(id, ObjectId) else NO_ID


def _has_position(document: Document) -> bool:
    """Whether the range of a job can have a position: not where another program wrote a priority of another type."""
    return document.get("priority") is None or _is_number(document["priority"])


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
