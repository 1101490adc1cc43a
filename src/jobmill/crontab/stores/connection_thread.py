"""A thread for blocking calls, with the connection that they use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

C = TypeVar("C")
T = TypeVar("T")


class ConnectionThread(Generic[C]):
    """Runs calls one at a time, in order. The first call starts the thread and connects."""

    def __init__(self, name: str, connect: Callable[[], C], disconnect: Callable[[C], None]) -> None:
        self._name = name
        self._connect = connect
        self._disconnect = disconnect
        self._executor: ThreadPoolExecutor | None = None
        self._connection: C | None = None

    async def run(self, work: Callable[[C], T]) -> T:
        """The result of the call. Cancelling the caller does not stop the call."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, self._name)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._call, work)

    def _call(self, work: Callable[[C], T]) -> T:
        if self._connection is None:
            self._connection = self._connect()
        return work(self._connection)

    async def close(self) -> None:
        """Finish the submitted calls. A later call starts the thread again."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(executor, self._end)
            executor.shutdown(wait=False)

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._disconnect(connection)
