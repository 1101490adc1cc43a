"""Waking workers: a change stream reports jobs that are inserted or wait again, whichever program wrote them.

If a job is due later, a timer wakes the workers that still sleep at its due time. The stream is closed while no worker
sleeps. A server without a replica set has no change streams: its workers poll every 0.2 seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymongo.asynchronous.change_stream import AsyncDatabaseChangeStream
from pymongo.errors import OperationFailure

from jobmill.errors import StoreError
from jobmill.stores.mongo.codec import ENDED_BY_RUN, STATE, Document, is_known, ms_of, order_of, ours_of, queue_of
from jobmill.stores.mongo.connection import QUEUES, STANDALONE, translated_errors

if TYPE_CHECKING:
    from jobmill.stores.mongo.context import MongoContext

log = logging.getLogger("jobmill")

POLL_SECONDS = 0.2
#: The pause after an error of the stream.
RETRY_SECONDS = 0.5
#: How long the server waits for the next change before it sends an empty response.
AWAIT_MS = 500
#: The stream is closed when no worker has slept for this time, because the server reads its whole log for a stream.
#: Measured with a busy worker: a job costs the server 200 us, and the stream is 35 us of it.
UNUSED_SECONDS = 1.0
#: When Monque has ended jobs, workers are woken after this time, to re-arm the recurring ones.
ENDED_MS = 250
#: Error codes: the stream cannot resume, because the server no longer has its position or cannot read it.
_CANNOT_RESUME = {136, 260, 280, 286}


async def wait_for_work(ctx: MongoContext, queues: Sequence[str], until_ms: int) -> None:
    """See the port."""
    seconds = (until_ms - ctx.now()) / 1000
    if seconds <= 0:
        return
    stream = ctx.streams.here()
    if ctx.is_standalone:
        seconds = min(seconds, POLL_SECONDS)
    stream.sleeping += 1
    try:
        await ctx.bell.wait(queues, seconds, ctx.seen_rings.get(tuple(queues), 0), on_sleep=stream.open)
    finally:
        stream.sleeping -= 1
        stream.used_at = time.monotonic()


def notify(ctx: MongoContext, queue: str | None, due_ms: int | None) -> None:
    """Wake workers of this process, because a job of this queue is due, or at `due_ms`. None: a job of any queue."""
    now_ms = ctx.now()
    if due_ms is not None and due_ms > now_ms and ctx.bell.sleepers:
        ctx.streams.here().ring_later(queue, (due_ms - now_ms) / 1000)
    else:
        ctx.bell.ring(None if queue is None else [queue])


def note_standalone(ctx: MongoContext) -> None:
    """Log once that the server is in no replica set."""
    if not ctx.is_standalone:
        ctx.is_standalone = True
        log.warning(
            "MongoDB at %s is in no replica set: it has no change streams and no transactions, so workers poll for "
            "jobs every %g s and nothing can be enqueued within a transaction",
            ctx.url.shown,
            POLL_SECONDS,
        )


class ChangeStream:
    """The change stream of one event loop. It is open while a worker sleeps, and for a short time afterwards."""

    def __init__(self, ctx: MongoContext) -> None:
        self._ctx = ctx
        #: How many tasks of this loop sleep, and when the last of them woke up.
        self.sleeping = 0
        self.used_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._resume: Any = None
        self._is_closed = False
        self._timers: dict[str | None, asyncio.TimerHandle] = {}

    def open(self) -> None:
        """Open the stream."""
        if not self._ctx.is_standalone and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch for jobs")

    def ring_later(self, queue: str | None, seconds: float) -> None:
        """Ring the bell of a queue after this time, unless a timer will ring it sooner."""
        loop, timer = asyncio.get_running_loop(), self._timers.get(queue)
        if timer is not None and timer.when() <= loop.time() + seconds and timer.when() > loop.time():
            return
        if timer is not None:
            timer.cancel()
        self._timers[queue] = loop.call_later(seconds, self._ctx.bell.ring, None if queue is None else [queue])

    async def close(self) -> None:
        """End the stream.

        pymongo may lose the cancellation, as wait_for of Python 3.11 does. Then the loop ends because it is closed.
        """
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def abandon(self) -> None:
        """The loop has ended, and the task with it."""

    @property
    def _is_unused(self) -> bool:
        return self._is_closed or (not self.sleeping and time.monotonic() - self.used_at > UNUSED_SECONDS)

    async def _watch(self) -> None:
        while not self._ctx.is_standalone and not self._is_unused:
            try:
                with translated_errors(self._ctx.url):
                    await self._listen()
            except Exception as error:
                # The worker's next exchange reports what is wrong with the store; the stream tries again.
                level = logging.DEBUG if isinstance(error, StoreError) else logging.ERROR
                log.log(level, "the stream of %s failed, and is opened again", self._ctx.url.address, exc_info=error)
                self._ctx.bell.ring()
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        try:
            async with await self._connect() as stream:
                self._ctx.bell.ring()  # the stream does not report jobs from before it was open
                while stream.alive and not self._is_unused:
                    change = await stream.try_next()
                    self._resume = stream.resume_token
                    if change is not None:
                        self._handle(change)
            # No worker sleeps, or the database was dropped. The next stream starts at the time when it is opened.
            self._resume = None
        except OperationFailure as error:
            self._handle_failure(error)

    def _handle_failure(self, error: OperationFailure) -> None:
        if error.code in _CANNOT_RESUME:
            self._resume = None
        if error.code not in STANDALONE:
            raise error
        note_standalone(self._ctx)

    async def _connect(self) -> AsyncDatabaseChangeStream[Document]:
        pipeline = _pipeline(self._ctx.url.collection)
        database = self._ctx.here.database
        return await database.watch(pipeline, resume_after=self._resume, max_await_time_ms=AWAIT_MS)

    def _handle(self, change: Document) -> None:
        ctx, document = self._ctx, change.get("fullDocument")
        if change["ns"]["coll"] != ctx.url.collection:
            notify(ctx, str(change["documentKey"]["_id"]), None)
        elif document is None:
            updated = change.get("updateDescription", {}).get("updatedFields", {})
            if has_ended := updated.get("status") in ENDED_BY_RUN:
                ctx.claims.rearm_from_ms = 0
                ctx.flows.has_ended = ctx.lanes.has_ended = True
            notify(ctx, None, ctx.now() + ENDED_MS if has_ended else ms_of(updated.get("nextRunAt")))
        elif not ctx.names or str(document.get("name")) in ctx.names:
            self._handle_job({**document, **change["documentKey"]})

    def _handle_job(self, job: Document) -> None:
        ctx = self._ctx
        if not is_known(job):
            ctx.report_once(job, unknown_status(job))
        queue, due_ms = queue_of(job, ctx.url.queue), ms_of(job.get("nextRunAt"))
        if isinstance(turn := ours_of(job).get("turn"), dict):
            # A claim finds it from then on, and gives it a slot. A job that is ready is announced when it gets one.
            due_ms = ms_of(turn.get("after")) or due_ms
        if ctx.claims.is_busy and due_ms is not None and due_ms <= ctx.now():
            ctx.claims.cursor.added(queue, str(job.get("name")), order_of(job)[0], due_ms)
        notify(ctx, queue, due_ms)


def unknown_status(document: Document) -> str:
    """Why a job never runs: neither Jobmill nor Monque knows its status."""
    return f"its status {document.get('status')!r} is unknown; expected one of {', '.join(STATE)}"


def _pipeline(collection: str) -> list[Document]:
    """Jobs that are inserted, wait again, are due at another time or were ended by Monque; queues that change."""
    waits = [
        {"updateDescription.updatedFields.status": "pending"},
        {"updateDescription.updatedFields.nextRunAt": {"$exists": True}},
        {
            "updateDescription.updatedFields.status": {"$in": ENDED_BY_RUN},
            "updateDescription.removedFields": {"$ne": "jobmill.leaseUntil"},  # which Jobmill removes
        },
    ]
    match = {
        "$or": [
            {"ns.coll": collection, "operationType": {"$in": ["insert", "replace"]}},
            {"ns.coll": collection, "operationType": "update", "$or": waits},
            {"ns.coll": QUEUES, "operationType": "insert"},
            {"ns.coll": QUEUES, "updateDescription.updatedFields.changes": {"$exists": True}},
        ]
    }
    shown = ["ns", "operationType", "documentKey"]
    shown += [f"updateDescription.updatedFields.{one}" for one in ("nextRunAt", "status")]
    of_job = ("name", "status", "nextRunAt", "priority", "jobmill.queue", "jobmill.turn")
    return [{"$match": match}, {"$project": dict.fromkeys((*shown, *(f"fullDocument.{one}" for one in of_job)), 1)}]
