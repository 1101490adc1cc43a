"""The verbs of the memory store that only look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jobmill.core.cursors import newer_than, older_than, read_cursor
from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name, matches, stats
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.memory.base import Base


class Looks(Base):
    """get, find, count, stats and logs, over the shelf."""

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the port."""
        with self._lock:
            return [entry.job if (entry := self._shelf.entries.get(id)) else None for id in ids]

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """Newest first. A cursor is "<" or ">" and the seq that the page begins after."""
        with self._lock:
            found = sorted(
                (e for e in self._shelf.entries.values() if matches(e.job, filter)), key=lambda entry: -entry.seq
            )
        backwards, seq = read_cursor(cursor)
        if backwards:
            before = [entry for entry in found if seq is not None and entry.seq > seq]
            page, more = before[-limit:], len(before) > limit
            older, newer = bool(page), more
        else:
            behind = found if seq is None else [entry for entry in found if entry.seq < seq]
            page, more = behind[:limit], len(behind) > limit
            older, newer = more, seq is not None and bool(page)
        return Page(
            [entry.job for entry in page],
            next=older_than(page[-1].seq) if older else None,
            previous=newer_than(page[0].seq) if newer else None,
        )

    async def count(self, filter: Filter) -> list[Count]:
        """See the port."""
        with self._lock:
            found = Counter(
                (entry.job.queue, entry.job.name, STATES.index(entry.job.state))
                for entry in self._shelf.entries.values()
                if matches(entry.job, filter)
            )
        return [Count(queue, name, STATES[state], n) for (queue, name, state), n in sorted(found.items())]

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """See the port."""
        wanted = Filter(queue=queue, name=name)
        table = by_queue_and_name(await self.count(wanted))
        with self._lock:
            now_ms = self.now()
            jobs = [entry.job for entry in self._shelf.entries.values() if matches(entry.job, wanted)]
        lines = []
        for (queue_, name_), counts in table.items():
            own = [job for job in jobs if (job.queue, job.name) == (queue_, name_)]
            waits = [now_ms - job.due_ms for job in own if job.state == "waiting" and job.due_ms <= now_ms]
            took = [
                float(job.finished_ms - job.started_ms)
                for job in own
                if job.state == "succeeded" and job.finished_ms is not None and job.started_ms is not None
            ]
            lines.append(stats(queue_, name_, counts, max(waits, default=None), took))
        return lines

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """See the port."""
        with self._lock:
            return list(self._logs.get(id, ()))[-limit:]
