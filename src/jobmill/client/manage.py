"""Management of jobs by a client: cancel, requeue, reschedule, hold and so on. Each act is in the audit log."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias, Unpack

from msgspec import structs

from jobmill.client.filters import FilterOptions, make_filter, shown_filter
from jobmill.client.query import QueriesJobs, matching
from jobmill.core import limits
from jobmill.core.audit import MAX_AUDIT_IDS, AuditEntry
from jobmill.core.changes import (
    Cancel,
    Change,
    Changed,
    Hold,
    Pin,
    Release,
    ReleasePin,
    Remove,
    Reprioritize,
    Requeue,
    Reschedule,
    act_name,
    states_for,
)
from jobmill.core.durations import Duration, to_ms
from jobmill.core.findings import Finding
from jobmill.core.job import FINAL, Job
from jobmill.core.recurrence import recurrence
from jobmill.core.values import EVERYTHING, Filter, Purged, after
from jobmill.errors import InvalidValue
from jobmill.handlers.enqueued import Enqueued
from jobmill.handlers.options import enqueue_options
from jobmill.store import Store

log = logging.getLogger("jobmill")

CHANGES_PER_CALL = 1_000
#: Changes after which a job matches the same filter as before, as a rule. Others give it another state.
STILL_MATCH = (Reschedule, Reprioritize, Hold)

#: One id, or several; None for filters, or for all jobs.
Which: TypeAlias = str | Iterable[str] | None


class ManagesJobs(QueriesJobs):
    """The part of a client that changes jobs: one id, several ids, all that match, or all=True."""

    async def cancel(
        self, which: Which = None, *, all: bool = False, who: str | None = None, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Cancel waiting and running jobs: only these, and not the other jobs of their flows (see `Flow.cancel`)."""
        return await self._change(_wanted(which, all, filters), Cancel(), who)

    async def requeue(
        self,
        which: Which = None,
        *,
        all: bool = False,
        spread: Duration = 0,
        keep_steps: bool = False,
        who: str | None = None,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Run final jobs again with fresh budgets; several are spread evenly over the period `spread`.

        They take their recorded steps again, unless `keep_steps` is true.
        """
        spread_ms = to_ms(spread, "spread")
        wanted = _wanted(which, all, filters)
        total = 0
        if spread_ms and isinstance(wanted, list):
            total = len(wanted)
        elif spread_ms:
            total = sum(one.count for one in await self.count(**filters) if one.state in FINAL)
        return await self._change(wanted, Requeue(step_ms=spread_ms / max(1, total), keep_steps=keep_steps), who)

    async def reschedule(
        self,
        which: Which = None,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        all: bool = False,
        who: str | None = None,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Give waiting jobs another due time."""
        if delay is None and due_at is None:
            raise InvalidValue("due_at", "delay or due_at", None)
        due = enqueue_options({"delay": delay, "due_at": due_at}).due
        return await self._change(_wanted(which, all, filters), Reschedule(due), who)

    async def reprioritize(
        self,
        which: Which = None,
        *,
        priority: int,
        all: bool = False,
        who: str | None = None,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Give waiting jobs another priority."""
        return await self._change(_wanted(which, all, filters), Reprioritize(limits.check_priority(priority)), who)

    async def remove(
        self, which: Which = None, *, all: bool = False, who: str | None = None, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Remove jobs that are not running (cancel those first)."""
        return await self._change(_wanted(which, all, filters), Remove(), who)

    async def hold(
        self,
        which: Which = None,
        *,
        note: str | None = None,
        all: bool = False,
        who: str | None = None,
        **filters: Unpack[FilterOptions],
    ) -> Changed:
        """Hold waiting jobs back: no worker claims them until they are released."""
        note = None if note is None else limits.check_note(note)
        change = Hold(who=self._who(who), note=note)
        return await self._change(_wanted(which, all, filters), change, who, note)

    async def release(
        self, which: Which = None, *, all: bool = False, who: str | None = None, **filters: Unpack[FilterOptions]
    ) -> Changed:
        """Release jobs that a person held: they are due as they were before, or as they were rescheduled meanwhile."""
        return await self._change(_wanted(which, all, filters), Release(), who)

    async def pin(
        self,
        which: str | Iterable[str],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        who: str | None = None,
    ) -> Changed:
        """Give recurring jobs another rule, which stays when code states its own again; see `release_pin`."""
        every_ms = None if every is None else to_ms(every, "every", least=1)
        rule = recurrence(key="pinned", cron=cron, every_ms=every_ms, timezone=timezone)
        return await self._change(_wanted(which, False, {}), Pin(rule), who)

    async def release_pin(self, which: str | Iterable[str], *, who: str | None = None) -> Changed:
        """Give pinned recurring jobs the rule that code stated last."""
        return await self._change(_wanted(which, False, {}), ReleasePin(), who)

    async def stop_workers(self, *ids: str, who: str | None = None) -> list[str]:
        """Order workers to stop gracefully, by the ids that `workers()` shows; the ids of those that are there.

        A worker learns it with its next announcement, at most ten seconds later.
        """
        await self.open()
        ordered = await self.store.order_stop(ids)
        if ordered:
            await self.audit("stop_workers", who=who, ids=ordered, count=len(ordered))
        return ordered

    async def fsck(self, *, repair: bool = False, who: str | None = None) -> list[Finding]:
        """Check whether the stored data is consistent, and repair it if you say so. Workers may run meanwhile."""
        await self.open()
        findings = await self.store.fsck(repair=repair)
        repaired = {one.check: one.repaired for one in findings if one.repaired}
        if repaired:
            note = ", ".join(f"{check}: {count}" for check, count in repaired.items())
            await self.audit("repair", who=who, count=sum(repaired.values()), note=note)
        return findings

    async def mark(self, text: str, *, who: str | None = None) -> None:
        """Add a mark to the audit log, for example the version that was deployed."""
        await self.open()
        note = limits.check_note(text, "text")
        await self.store.audit([AuditEntry(id=self.store.new_id(), who=self._who(who), what="mark", note=note)])

    async def audit(
        self,
        what: str,
        *,
        who: str | None = None,
        queue: str | None = None,
        ids: Sequence[str] = (),
        filter: dict[str, Any] | None = None,
        count: int = 0,
        note: str | None = None,
    ) -> None:
        """Add to the audit log what has been done. If that fails, the log has a warning: the act itself stands."""
        try:
            id, named = self.store.new_id(), tuple(ids[:MAX_AUDIT_IDS])
            entry = AuditEntry(
                id=id,
                who=self._who(who),
                what=what,
                queue=queue,
                ids=named,
                filter=filter,
                count=count,
                note=note,
            )
            await self.store.audit([entry])
        except Exception as error:
            log.warning("the audit log could not be written (%s): %r", what, error)

    def _who(self, who: str | None) -> str:
        return self.who if who is None else limits.check_note(who, "who")

    async def _change(
        self, wanted: Filter | list[str], change: Change, who: str | None = None, note: str | None = None
    ) -> Changed:
        self._who(who)
        await self.open()
        changed = await self._change_all(wanted, change)
        if changed.ids:
            filter = shown_filter(wanted) if isinstance(wanted, Filter) else None
            queue = wanted.queue if isinstance(wanted, Filter) else None
            count = len(changed.ids)
            what = act_name(change)
            await self.audit(what, who=who, queue=queue, ids=changed.ids, filter=filter, count=count, note=note)
        return changed

    async def _change_all(self, wanted: Filter | list[str], change: Change) -> Changed:
        changed: list[str] = []
        refused: dict[str, str] = {}
        async for answer in batches(self.store, wanted, change):
            changed += answer.ids
            refused |= answer.refused
        return Changed(ids=changed, refused=refused)

    async def purge(self, *, who: str | None = None) -> int:
        """Remove final jobs past their retention now (workers do so by themselves); how many went."""
        await self.open()
        removed = 0
        while True:
            purged: Purged = await self.store.purge()
            removed += purged.removed
            if not purged.more:
                break
        if removed:
            await self.audit("purge", who=who, count=removed)
        return removed


def _wanted(which: Which, all: bool, filters: FilterOptions) -> Filter | list[str]:
    """Which jobs to change. All of them only with all=True, never because the only filter given is None."""
    wanted = make_filter(filters)
    if which is None:
        if wanted == EVERYTHING and not all:
            raise InvalidValue("which", "ids, at least one filter, or all=True", None)
        return wanted
    if all or wanted != EVERYTHING:
        raise InvalidValue("which", "ids, or filters, or all=True, not several of them", which)
    given: Any = which
    ids = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for one in ids:
        if isinstance(one, Enqueued | Job):
            raise InvalidValue("which", "an id, or several", one, "give its .id")
    return [limits.check_known_id(id, "which", "an id, or several") for id in ids]


async def batches(
    store: Store, wanted: Filter | list[str], change: Change, size: int = CHANGES_PER_CALL
) -> AsyncGenerator[Changed, None]:
    """Change jobs, at most `size` per call; what each call did. A refused job is in one of the answers only."""
    seen: set[str] = set()
    while isinstance(wanted, Filter):
        answer = await store.change(wanted, change, size)
        new = {id: why for id, why in answer.refused.items() if id not in seen}
        yield Changed(ids=answer.ids, refused=new, more=answer.more)
        if not answer.more:
            return
        seen.update(new, answer.ids)
        change = _moved_on(change, len(answer.ids))
        if isinstance(change, STILL_MATCH) or len(answer.refused) > size // 2:
            # Jobs that still match would fill the next call as well: continue by id, without them.
            selected = structs.replace(wanted, states=states_for(change, wanted))
            wanted = [job.id async for job in matching(store, selected) if job.id not in seen]
    for start in range(0, len(wanted), size):
        answer = await store.change(wanted[start : start + size], change, size)
        yield structs.replace(answer, more=start + size < len(wanted))
        change = _moved_on(change, len(answer.ids))


def _moved_on(change: Change, done: int) -> Change:
    """A spread requeue continues where the last batch ended."""
    if isinstance(change, Requeue) and change.step_ms:
        return structs.replace(change, due=after(change.due.after_ms + round(done * change.step_ms)))
    return change
