"""Getting jobs in."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from jobmill.core.job import NO_OPTIONS
from jobmill.core.values import NewJob, Receipt
from jobmill.stores.redis import bullmq_options as opts
from jobmill.stores.redis import scripts
from jobmill.stores.redis.context import MOST_A_CALL, MOST_BYTES_A_CALL, Base, text
from jobmill.stores.redis.ids import check_no_own_key, deduplication_id, local_id, port_id, scheduler_id

#: Calls that are sent before the first is answered.
IN_FLIGHT = 8


class Enqueues(Base):
    """The verb enqueue."""

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port. Jobs of one queue are one step, up to 200 of them."""
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for place, new in enumerate(new_jobs):
            by_queue[new.queue].append(place)
            check_no_own_key(local_id(new.queue, new.id))
        for queue in by_queue:
            await self._register(queue)
        receipts: list[Receipt] = [None] * len(new_jobs)  # type: ignore[list-item]
        calls = [(queue, some) for queue, places in by_queue.items() for some in _in_calls(new_jobs, places)]
        # Several before the first is answered: client and server work at the same time. Not all: each has a deadline.
        for first in range(0, len(calls), IN_FLIGHT):
            some_calls = calls[first : first + IN_FLIGHT]
            await asyncio.gather(*(self._enqueue(queue, new_jobs, some, receipts) for queue, some in some_calls))
        return receipts

    async def _enqueue(
        self, queue: str, new_jobs: Sequence[NewJob], places: list[int], receipts: list[Receipt]
    ) -> None:
        now_ms = self.now()
        jobs = [_written(new_jobs[place], now_ms) for place in places]
        answers = await self._run(scripts.ENQUEUE, queue, now_ms, jobs=jobs, ours=True)
        for place, (how, id, ours) in zip(places, answers, strict=True):
            receipts[place] = Receipt(port_id(queue, id.decode(), bool(ours)), how.decode())


def _in_calls(new_jobs: Sequence[NewJob], places: list[int]) -> Iterator[list[int]]:
    """Stretches of the jobs that go into one call."""
    some: list[int] = []
    size = 0
    for place in places:
        length = len(new_jobs[place].payload_json)
        if some and (len(some) == MOST_A_CALL or size + length > MOST_BYTES_A_CALL):
            yield some
            some, size = [], 0
        some.append(place)
        size += length
    yield some


def _written(new: NewJob, now_ms: int) -> tuple[Any, ...]:
    """A job as enqueue.lua takes it."""
    due = new.due
    due_ms = now_ms if due.at_ms is None and not due.after_ms else due.resolve(now_ms)
    delay_ms = max(0, due_ms - now_ms)
    own: list[Any] | None = None
    if new.options is not NO_OPTIONS or new.tenant is not None or due_ms != now_ms:
        own = _own(new, due_ms, now_ms)
    id = local_id(new.queue, new.id)
    if new.unique_key is None and delay_ms == 0:
        opts_json = opts.written(new.options, new.priority)
        return (id, new.name, new.payload_json.decode(), opts_json, 0, due_ms, new.priority, own)
    deid = None if new.unique_key is None else deduplication_id(new.name, new.unique_key)
    special: dict[str, Any] | None = None
    if new.unique_key is not None:
        special = {"deid": deid, "sid": scheduler_id(new.name, new.unique_key)}
    if new.recurrence is not None:
        # The run is known by its scheduler, and a scheduler's runs have no deduplication id.
        special = (special or {}) | {"run": _run(new, due_ms)}
        opts_json = text(opts.as_opts(new.options, new.priority))
    else:
        opts_json = text(opts.as_opts(new.options, new.priority, delay_ms, deid))
    return (id, new.name, new.payload_json.decode(), opts_json, delay_ms, due_ms, new.priority, own, special)


def _own(new: NewJob, due_ms: int, now_ms: int) -> list[Any]:
    own: list[Any] = []
    said = opts.Said(o=None if new.options == NO_OPTIONS else new.options, t=new.tenant)
    if said != opts.NOTHING_SAID:
        own += ["jmo", text(said)]
    if due_ms != now_ms and new.recurrence is None:
        own += ["jmd", due_ms]
    return own


def _run(new: NewJob, slot_ms: int) -> dict[str, Any]:
    """What the scheduler of a recurring job is told."""
    rule = new.recurrence
    assert rule is not None
    repeat = opts.repeat_opts(rule)
    offset = 0 if rule.every_ms is None else slot_ms % rule.every_ms
    template = opts.as_opts(new.options, new.priority)
    record = [part for field, value in repeat.items() for part in (field, value)]
    return {
        "sid": scheduler_id(new.name, rule.key),
        "rule": text(structs.replace(rule, revision=0)),
        "rule_opts": text(repeat),
        "record": [*record, "offset", offset, "opts", text(template)],
        "keeps_due": new.keeps_due,
    }
