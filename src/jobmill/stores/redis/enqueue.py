"""Enqueueing jobs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from jobmill.core.values import NewJob, Receipt
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.context import (
    MAX_BYTES_PER_CALL,
    MAX_CALLS_IN_FLIGHT,
    MAX_JOBS_PER_CALL,
    RedisContext,
)
from jobmill.stores.redis.flows import TEXTS, enqueue_flow
from jobmill.stores.redis.hints import add_cancels
from jobmill.stores.redis.ids import check_no_queue_key, local_id, port_id
from jobmill.stores.redis.job_request import job_request
from jobmill.stores.redis.scripts import ENQUEUE, ENQUEUE_BY_POLICY


async def enqueue(c: RedisContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port. One atomic step writes up to 200 jobs of one queue; flows.py has jobs that wait for others."""
    by_queue: defaultdict[str, list[int]] = defaultdict(list)
    by_policy = has_lanes = False
    for position, new in enumerate(new_jobs):
        by_queue[new.queue].append(position)
        check_no_queue_key(local_id(new.queue, new.id))
        if new.after:
            return await enqueue_flow(c, new_jobs)
        if new.policy is not None:
            by_policy = True
        if new.lane is not None:
            has_lanes = True
    calls: list[tuple[str, Sequence[int]]] = []
    for queue, positions in by_queue.items():
        await c.register(queue)
        parts = chunks(positions, MAX_JOBS_PER_CALL, MAX_BYTES_PER_CALL, lambda n: len(new_jobs[n].payload_json))
        calls += [(queue, part) for part in parts]
    receipts: dict[int, Receipt] = {}
    if len(calls) == 1:  # a single call needs no task, which would take 10 us
        await _enqueue(c, *calls[0], new_jobs, receipts, by_policy, has_lanes)
    else:
        for some in chunks(calls, MAX_CALLS_IN_FLIGHT):
            each = (_enqueue(c, queue, part, new_jobs, receipts, by_policy, has_lanes) for queue, part in some)
            await asyncio.gather(*each)
    return [receipts[position] for position in range(len(new_jobs))]


async def _enqueue(
    c: RedisContext,
    queue: str,
    positions: Sequence[int],
    new_jobs: Sequence[NewJob],
    receipts: dict[int, Receipt],
    by_policy: bool,
    has_lanes: bool,
) -> None:
    now_ms = c.clock.now()
    jobs = [job_request(new_jobs[position], now_ms) for position in positions]
    more = {"lanes": True} if has_lanes and any(new_jobs[position].lane is not None for position in positions) else {}
    if by_policy:
        answers, cancelled = await c.run(ENQUEUE_BY_POLICY, queue, now_ms, jobs=jobs, ours=True, texts=TEXTS, **more)
    else:
        answers, cancelled = await c.run(ENQUEUE, queue, now_ms, jobs=jobs, ours=True, **more), ()
    for position, (how, id, is_ours) in zip(positions, answers, strict=True):
        receipts[position] = Receipt(port_id(queue, id.decode(), bool(is_ours)), how.decode())
    if cancelled:
        await add_cancels(c, [id.decode() for id in cancelled])
