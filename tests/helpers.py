"""What tests of several folders share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jobmill.core.values import Claim, Exchanged, Lease, NewJob, Receipt, Report, Settlement
from jobmill.stores.memory import MemoryStore


async def until(condition: Callable[[], Any | Awaitable[Any]], timeout: float = 14.0) -> Any:
    """Await a condition: its first true answer, or a failure that shows it.

    The usual timeout is for a busy machine, but shorter than a lease: 15 s.
    """
    end = asyncio.get_running_loop().time() + timeout
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"not within {timeout} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.002)


def without_coverage(environment: Mapping[str, str]) -> dict[str, str]:
    """For a process whose imports a test looks at: `dev.py coverage` would import its own modules there."""
    return {name: value for name, value in environment.items() if not name.startswith("COVERAGE_")}


class FaultyStore(MemoryStore):
    """A real store that raises on demand: `faults["exchange"] = StoreUnavailable(...)`, or a function."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, BaseException | Callable[..., BaseException | None]] = {}
        self.calls: list[str] = []

    def _meet(self, verb: str, *args: Any) -> None:
        self.calls.append(verb)
        fault = self.faults.get(verb)
        error = fault(*args) if fault is not None and not isinstance(fault, BaseException) else fault
        if error is not None:
            raise error

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """As told."""
        self._meet("enqueue", new_jobs)
        return await super().enqueue(new_jobs)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """As told."""
        self._meet("exchange", settlements, claim)
        return await super().exchange(settlements, claim)

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """As told."""
        self._meet("extend", leases, for_ms)
        return await super().extend(leases, for_ms)

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """As told."""
        self._meet("report", reports)
        return await super().report(reports)

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """As told."""
        self._meet("wait_for_work", queues, until_ms)
        await super().wait_for_work(queues, until_ms)
