"""The verbs of the memory store that change jobs without a lease."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Changed, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.events import claim_events, job_event
from jobmill.core.job import KEEP_FAILED, NULL
from jobmill.core.stats import matches
from jobmill.core.values import Filter, Purged
from jobmill.stores.memory.look import Looks
from jobmill.stores.memory.shelf import Entry


class Changes(Looks):
    """change and purge."""

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """See the port."""
        with self._step(wakes=True) as now_ms:
            refused: dict[str, str] = {}
            more = False
            if isinstance(which, Filter):
                allowed = CHANGES_FROM[type(change)]
                found = [e for e in self._shelf.entries.values() if e.job.state in allowed and matches(e.job, which)]
                more = len(found) > limit
                entries = found[:limit]
            else:
                ids = list(dict.fromkeys(which))
                more = len(ids) > limit
                refused = {id: "there is no such job" for id in ids[:limit] if id not in self._shelf.entries}
                entries = [self._shelf.entries[id] for id in ids[:limit] if id in self._shelf.entries]
            changed: list[str] = []
            for entry in entries:
                why = self._change_one(entry, change, len(changed), now_ms)
                if why is None:
                    changed.append(entry.job.id)
                else:
                    refused[entry.job.id] = why
            return Changed(ids=changed, refused=refused, more=more)

    def _change_one(self, entry: Entry, change: Change, index: int, now_ms: int) -> str | None:
        """Do it, or say why not."""
        job = entry.job
        if job.state not in CHANGES_FROM[type(change)]:
            return f"the job is {job.state}"
        match change:
            case Cancel():
                entry.token = None
                job = self._shelf.write(entry, state="cancelled", finished_ms=now_ms, updated_ms=now_ms)
                self._tell(job.queue, [job_event(job, "cancelled", now_ms)])
                self._retain(entry, job.options.keep_failed or KEEP_FAILED, now_ms)
            case Requeue():
                return self._requeue(entry, change, index, now_ms)
            case Reschedule():
                self._shelf.write(entry, due_ms=change.due.resolve(now_ms), updated_ms=now_ms)
            case Reprioritize():
                self._shelf.write(entry, priority=change.priority, updated_ms=now_ms)
            case Remove():
                self._remove(entry, now_ms)
            case Seize():
                self._seize(entry, change, now_ms)
        return None

    def _seize(self, entry: Entry, change: Seize, now_ms: int) -> None:
        entry.token = change.token
        entry.lease_until_ms = now_ms + change.lease_ms
        job = self._shelf.write(
            entry,
            state="running",
            claims=entry.job.claims + 1,
            worker=change.worker,
            started_ms=now_ms,
            updated_ms=now_ms,
        )
        self._tell(job.queue, claim_events(job, now_ms, lease_lost=False))

    def _requeue(self, entry: Entry, change: Requeue, index: int, now_ms: int) -> str | None:
        job = entry.job
        owner = self._shelf.owner(job)
        if owner is not None:
            return f"the live job {owner} has its unique key"
        job = self._shelf.write(
            entry,
            state="waiting",
            due_ms=change.due.resolve(now_ms) + round(index * change.step_ms),
            updated_ms=now_ms,
            finished_ms=None,
            errors=0,
            crashes=0,
            error=None,
            result_json=NULL,
            progress=None,
            deferred_error=None,
        )
        self._tell(job.queue, [job_event(job, "enqueued", now_ms)])
        return None

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port."""
        with self._step() as now_ms:
            gone = []
            newer: dict[tuple[str, str], int] = {}
            finals = [entry for entry in self._shelf.entries.values() if entry.job.finished_ms is not None]
            for entry in sorted(finals, key=lambda entry: (-(entry.job.finished_ms or 0), -entry.seq)):
                job, keep = entry.job, entry.keep
                place = newer[job.queue, job.state] = newer.get((job.queue, job.state), 0) + 1
                too_old = keep.age_ms is not None and (job.finished_ms or 0) + keep.age_ms <= now_ms
                if too_old or (keep.last is not None and place > keep.last):
                    gone.append(entry)
            for entry in gone[:limit]:
                self._remove(entry, now_ms)
            return Purged(min(len(gone), limit), more=len(gone) > limit)
