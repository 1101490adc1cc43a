"""Claiming ahead: jobs with short handlers are claimed before a slot is free, and wait in the worker.

Without it, a slot is empty from the end of a job until the next exchange has returned. The worker claims as many jobs
ahead as end during one exchange, and not more: an urgent job that arrives waits behind them, and so do the jobs
themselves if other workers are idle.
"""

from __future__ import annotations

import sys
import time
from collections import deque

from jobmill.core.values import Broken, Claimed
from jobmill.worker.context import WorkerContext
from jobmill.worker.running import Run

#: Handlers whose runs take longer on average are never claimed ahead.
MAX_RUN_S = 0.1
#: On a store inside this process, nor are those that take less: they and the store would compete for the interpreter.
#: Measured on SQLite: with handlers of 5 ms 1.4 times as many jobs per second, with no-op handlers 0.9 times.
MIN_LOCAL_RUN_S = 0.001
#: If no job has started for this time although jobs wait for a slot, they are given back to other workers.
MAX_STUCK_S = 0.5
#: After that, nothing is claimed ahead for this time.
STUCK_PAUSE_S = 5.0
#: Finished jobs are settled with the next claim ahead, but after this time at the latest.
MAX_UNSETTLED_S = 0.01
#: Payloads that wait in the worker have at most this size together, as far as the last claim shows.
MAX_BYTES = 8 * 1024 * 1024
#: How many jobs of a claim show how large payloads are.
SAMPLED = 20
#: How often run times are read, and how often the store is asked for limits and foreign workers.
MEASURE_EVERY_S = 0.2
MEASURE_FIRST_S = 0.01
ASK_EVERY_S = 10.0
#: A quicker exchange counts as this time: otherwise there would be many small ones.
MIN_EXCHANGE_S = 0.005
#: How fast an estimate forgets.
FORGETS = 0.3


class AheadRules:
    """For which handlers and queues a worker may claim ahead; shared by its exchangers."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._min_run_s = MIN_LOCAL_RUN_S if context.store.exchanges_in_flight == 1 else 0.0
        self._limited = {name for name, handler in context.handlers.items() if handler.concurrency is not None}
        #: The names of handlers that are known to be short and have no limit; and whether these are all names.
        self.short: frozenset[str] = frozenset()
        self.are_all_short = False
        #: Whether the store knows no limit and no foreign worker of the queues.
        self._is_allowed = False
        self._means: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._measured = self._asked = -ASK_EVERY_S

    @property
    def allow(self) -> bool:
        """Whether anything may be claimed ahead now."""
        return self._is_allowed and bool(self.short)

    async def refresh(self, now: float) -> None:
        """Read run times, and ask the store for limits and foreign workers, if the last time was long ago."""
        if now - self._measured >= (MEASURE_EVERY_S if self.short else MEASURE_FIRST_S):
            self._measured = now
            self._measure()
        if self.short and now - self._asked >= ASK_EVERY_S:
            self._asked = now
            self._is_allowed = await self._ask()

    def _measure(self) -> None:
        short, long = set[str](), set(self._limited)
        for queue, name, series in self._context.counts.all_series():
            count, total, mean = self._means.get((queue, name), (0, 0.0, -1.0))
            seconds, runs = series.run_seconds.sum, sum(series.run_seconds.counts)
            if runs > count:
                latest = (seconds - total) / (runs - count)
                mean = latest if mean < 0 else mean + FORGETS * (latest - mean)
                self._means[queue, name] = (runs, seconds, mean)
            if mean >= 0:
                (short if self._min_run_s <= mean < MAX_RUN_S else long).add(name)
        self.short = frozenset((short - long) & self._context.handlers.keys())
        self.are_all_short = len(self.short) == len(self._context.handlers)

    async def _ask(self) -> bool:
        """Whether no queue of this worker has a limit, or workers of other systems: they see claimed jobs as active."""
        queues = self._context.settings.queues
        try:
            settings = await self._context.store.settings(queues)
            cards = await self._context.store.workers()
        except Exception:
            return False  # the exchanger reports an outage; the next question comes after a while
        limited = any(one.rate_limit or one.running_limit or one.lanes for one in settings.values())
        foreign = any(card.system != "jobmill" and not set(queues).isdisjoint(card.queues) for card in cards)
        return not limited and not foreign

    async def paused(self) -> set[str]:
        """The queues that are paused now."""
        store = self._context.store
        settings = await store.settings(self._context.settings.queues)
        return {queue for queue, one in settings.items() if one.at(store.now()).paused}


class AheadQueue:
    """The jobs that wait in one exchanger for a free slot, in claim order, and how many there should be."""

    def __init__(self, rules: AheadRules, limit: int) -> None:
        self.rules = rules
        self.waiting: deque[Run] = deque()
        #: How many jobs should wait here or be on their way; 0: none is claimed ahead.
        self.target = 0
        #: The end of a run causes an exchange if not more jobs wait than this.
        self.wake_at = sys.maxsize
        #: When a job that waited here was started, or the first of them came.
        self.moved = 0.0
        #: How many jobs were settled since the last claim that was full.
        self.settled = 0
        self._limit = limit
        self._asked = 0.0
        #: How many jobs end during one exchange.
        self._worth = 0.0
        self._not_before = 0.0

    async def learn(self, claimed: list[Claimed | Broken], asked: float, took: float) -> None:
        """After a claim that was full, asked for at `asked`: decide how many jobs to claim ahead."""
        cycle, self._asked = max(asked - self._asked, took), asked
        worth, self.settled = self.settled * max(took, MIN_EXCHANGE_S) / cycle, 0
        self._worth = max(worth, self._worth + FORGETS * (worth - self._worth))
        if self._limit:
            await self.rules.refresh(asked + took)
        if not self._limit or not self.rules.allow or asked < self._not_before:
            self.stop()
            return
        # When the answer of one exchange comes, the next one is sent, and what waits must last until its answer: so
        # twice the number, of which half is on its way.
        self.target = min(self._limit, round(2 * self._worth), _fitting(claimed))
        self.wake_at = self.target // 2 if self.rules.are_all_short else 0

    def stop(self, pause: float = 0.0) -> None:
        """Claim nothing ahead until the next claim that is full; at least for this time."""
        self.target, self.wake_at = 0, sys.maxsize
        if pause:
            self._not_before = time.monotonic() + pause

    def claimable(self, free: int, rooms: dict[str, int], most: int = sys.maxsize) -> tuple[int, dict[str, int]]:
        """How many jobs to claim with this number of free slots, at most `most`, and at most how many of each name.

        A handler that is not known to be short gets free slots only. If there is one, jobs are claimed ahead only
        together with jobs for free slots, because it would never be claimed otherwise.
        """
        short, more = self.rules.short, self.target - len(self.waiting)
        if more <= 0 or (free <= 0 and not self.rules.are_all_short):
            return free, rooms
        n = min(max(free, 0) + more, most)
        return n, dict.fromkeys(short, n) | {name: min(rooms[name], free) for name in rooms.keys() - short}

    def may_wait(self, claimed: Claimed | Broken) -> bool:
        """Whether a job may wait for a slot: its handler is short, and it was never lost while it waited."""
        return not isinstance(claimed, Broken) and claimed.job.name in self.rules.short and not claimed.job.unstarted

    @property
    def is_stuck(self) -> bool:
        """Whether jobs wait although none has started for a while: their handlers are not short any more."""
        return time.monotonic() - self.moved > MAX_STUCK_S


def _fitting(claimed: list[Claimed | Broken]) -> int:
    """How many jobs like these fit into MAX_BYTES."""
    sizes = [len(one.job.payload_json) for one in claimed[-SAMPLED:] if not isinstance(one, Broken)]
    return sys.maxsize if not any(sizes) else MAX_BYTES * len(sizes) // sum(sizes)
