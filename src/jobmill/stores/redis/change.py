"""Changes without a lease, and retention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Changed, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.values import Filter, Purged
from jobmill.stores.redis import scripts
from jobmill.stores.redis.context import MOST_A_CALL, text
from jobmill.stores.redis.ids import local_id
from jobmill.stores.redis.read import Looks


class Changes(Looks):
    """change and purge."""

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """See the port. Each queue is a step of its own, up to 200 jobs of it."""
        if isinstance(which, Filter):
            ids, more = await self._matching(which, change, limit)
        else:
            ids = list(dict.fromkeys(which))
            ids, more = ids[:limit], len(ids) > limit
        refused: dict[str, str] = {}
        by_queue: defaultdict[str, list[str]] = defaultdict(list)
        for id, queue in (await self._queues_of(ids)).items():
            if queue is None:
                refused[id] = "there is no such job"
            elif queue == "":
                refused[id] = "several queues have a job of this id: say queue:id"
            else:
                by_queue[queue].append(id)
        changed: list[str] = []
        for queue, own in by_queue.items():
            for first in range(0, len(own), MOST_A_CALL):
                some = own[first : first + MOST_A_CALL]
                for id, answer in zip(some, await self._change(queue, some, change, len(changed)), strict=True):
                    if answer == b"done":
                        changed.append(id)
                    else:
                        refused[id] = answer.decode()
        return Changed(changed=changed, refused=refused, more=more)

    async def _matching(self, which: Filter, change: Change, limit: int) -> tuple[list[str], bool]:
        allowed = CHANGES_FROM[type(change)]
        states = allowed if which.states is None else tuple(state for state in which.states if state in allowed)
        wanted = msgspec.structs.replace(which, states=states)
        ids: list[str] = []
        async for job in self._walk(wanted):
            ids.append(job.id)
            if len(ids) > limit:
                return ids[:limit], True
        return ids, False

    async def _change(self, queue: str, ids: list[str], change: Change, index: int) -> list[bytes]:
        now_ms = self.now()
        ask: dict[str, Any] = {
            "verb": type(change).__name__.lower(),
            "ids": [local_id(queue, id) for id in ids],
            "from": dict.fromkeys(CHANGES_FROM[type(change)], True),
        }
        match change:
            case Requeue():
                due_ms = change.due.resolve(now_ms)
                ask["due"] = [due_ms + round((index + place) * change.step_ms) for place in range(len(ids))]
            case Reschedule():
                ask["due"] = [change.due.resolve(now_ms)] * len(ids)
            case Reprioritize():
                ask["priority"] = change.priority
            case Seize():
                worker_json = text({"worker": change.worker})
                ask |= {"token": change.token, "worker": change.worker, "worker_json": worker_json}
                ask["lease_ms"] = change.lease_ms
            case Cancel() | Remove():
                pass
        answers: list[bytes] = await self._run(scripts.CHANGE, queue, now_ms, **ask)
        if isinstance(change, Seize):
            self._scans.leased(queue, now_ms + change.lease_ms, True)
        return answers

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port: jobs of ours, queue by queue. Node's go by BullMQ's own rules, when the next one ends."""
        removed, more = 0, False
        for queue in await self._registered_queues():
            if removed >= limit:
                return Purged(removed, more=True)
            many, left = await self._run(scripts.PURGE, queue, self.now(), limit=min(limit - removed, 500))
            removed += many
            more = more or bool(left)
        return Purged(removed, more)
