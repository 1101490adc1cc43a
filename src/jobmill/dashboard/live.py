"""Live updates: one loop for all open tabs looks at the store once a second, and tells them what has changed.

A tab then asks for its page again, through the same URL with the same permissions. The answers to equal queries are
shared (`reads.py`), so the number of calls to the store does not depend on the number of tabs.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Final

from jobmill.dashboard.reads import Reads

log = logging.getLogger("jobmill")

EVERY_S: Final = 1.0
#: Charts change with the announcements of workers.
SLOW_EVERY: Final = 10
#: A comment keeps connections open that proxies would close.
COMMENT_S: Final = 15.0
#: Then a stream ends, and the tab asks for another one: permissions are checked again, and a server that waits for open
#: connections when it stops does not wait for ever.
LIFE_S: Final = 60.0
#: A tab that reads slowly loses the oldest events: each only says that something has changed.
_MAX_WAITING: Final = 8
_ALL: Final = ("second", "queues", "workers", "slow")


class Live:
    """The loop. It runs while a tab is open."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._tabs: set[asyncio.Queue[str | None]] = set()
        self._loop: asyncio.Task[None] | None = None
        #: Which process this is, and how often tabs have been told of a change: other processes have other numbers.
        self._process = secrets.token_hex(4)
        self._changes = 0

    @property
    def version(self) -> str:
        """What a page begins from. If it is another one when the page opens its stream, something has changed."""
        return f"{self._process}-{self._changes}"

    @property
    def tabs(self) -> int:
        """How many tabs are open."""
        return len(self._tabs)

    async def stream(self, *, again: bool = False, version: str | None = None) -> AsyncIterator[str]:
        """The events for one tab, as server-sent events.

        A tab that comes `again`, or whose page began from another `version`, has missed some: it gets all.
        """
        again = again or version not in (None, self.version)
        waiting: asyncio.Queue[str | None] = asyncio.Queue(_MAX_WAITING)
        self._tabs.add(waiting)
        if self._loop is None or self._loop.done() or self._loop.get_loop() is not asyncio.get_running_loop():
            self._loop = asyncio.create_task(self._run(), name="jobmill dashboard")
        try:
            # A tab sends the id when it comes again.
            yield "id: 1\n\n"
            for event in _ALL if again else ():
                yield _event(event)
            now = asyncio.get_running_loop().time
            end = now() + LIFE_S
            while (left_s := end - now()) > 0:
                try:
                    async with asyncio.timeout(min(COMMENT_S, left_s)):
                        news = await waiting.get()
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if news is None:
                    return
                yield _event(news)
        finally:
            self._tabs.discard(waiting)
            if not self._tabs and self._loop is not None:
                # The next tab may come before this loop has ended, and begins another one.
                self._loop.cancel()
                self._loop = None

    async def close(self) -> None:
        """End the loop and the streams of all tabs."""
        for waiting in self._tabs:
            _put(waiting, None)
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        seen: dict[str, object] = {}
        turn, is_up = 0, True
        while True:
            try:
                depths, settings, workers = await asyncio.gather(
                    self._reads.depths(), self._reads.settings(), self._reads.workers()
                )
                changed = ["second"] if is_up else [*_ALL]
                now: dict[str, object] = {"queues": (depths, settings), "workers": workers}
                changed += [topic for topic, value in now.items() if seen.get(topic) != value]
                if turn % SLOW_EVERY == 0:
                    reads = self._reads
                    await asyncio.gather(reads.last_hour(), reads.marks(), reads.late(), reads.recurring_count())
                    changed.append("slow")
                seen, is_up = now, True
            except Exception as error:
                if is_up:
                    log.warning("the dashboard cannot read the store: %r", error)
                changed, is_up = (["down"] if is_up else []), False
            self._tell(dict.fromkeys(changed))
            turn += 1
            await asyncio.sleep(EVERY_S)

    def _tell(self, events: Iterable[str]) -> None:
        for event in events:
            self._changes += event != "second"
            for waiting in self._tabs:
                _put(waiting, event)


def _put(waiting: asyncio.Queue[str | None], event: str | None) -> None:
    if waiting.full():
        waiting.get_nowait()
    waiting.put_nowait(event)


def _event(topic: str) -> str:
    return f"event: {topic}\ndata: 1\n\n"
