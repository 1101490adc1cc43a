"""What can happen to the database behind a store, and how each server is made to do it.

Each operation is a context manager: the fault begins with the block and ends with it. Clients reach a server through a
proxy, so that the network can fail as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, get_args

from tests.kit.processes import Server
from tests.kit.proxy import Proxy
from tests.kit.workers import WorkerProcesses

Operation = Literal[
    "kill",  # the server's processes end with -9, and are started again
    "pause",  # the server keeps its connections, and answers nobody
    "cut",  # the network resets all connections, again and again
    "stall",  # the network holds back all that is sent, and delivers it later
    "refuse",  # nobody listens where the server was
    "vanish",  # connections stay open, and nothing comes from them any more
    "delay",  # all that is sent arrives later
    "drop_answer",  # the server does what it is asked, and its answer is lost
    "terminate",  # the server ends all connections, again and again
    "crowd",  # other clients have all connections that the server allows
    "read_only",  # the server refuses writes
    "full_disk",  # the server has no room for what is written
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

Fault = Callable[[], AbstractAsyncContextManager[None]]

_NO_SERVER = "SQLite has no server process; tests/faults/test_workers.py kills the processes that use the file"
_NO_NETWORK = "SQLite has no connections over a network"

#: What a store cannot be put through, and why. The memory store has none of them: it ends with its process.
LACKING: Mapping[str, Mapping[Operation, str]] = {
    "sqlite": {
        "kill": _NO_SERVER,
        "cut": _NO_NETWORK,
        "stall": _NO_NETWORK,
        "refuse": _NO_NETWORK,
        "vanish": _NO_NETWORK,
        "delay": _NO_NETWORK,
        "drop_answer": _NO_NETWORK,
        "terminate": _NO_NETWORK,
        "crowd": _NO_NETWORK,
        "read_only": "root may write to every file, and nothing else makes an open file read-only from outside",
    },
    "postgres": {},
    "redis": {},
    "mongo": {
        "crowd": "mongod has a limit of connections only from its start on; it closes those beyond it, which is `cut`",
    },
}
STORES = tuple(LACKING)

#: Between two of the faults that happen again and again.
AGAIN_AFTER_S = 0.1
#: On each way. A claim and a settlement take some round trips within a lease of 1 s.
DELAY_S = 0.05


class FaultyServer(Protocol):
    """A database without jobs that a test may torment, and the worker processes that use it."""

    #: As `--store` names it.
    store_name: str
    url: str
    #: The same database, past the proxy.
    direct_url: str
    workers: WorkerProcesses

    @property
    def faults(self) -> Mapping[Operation, Fault]:
        """The operations that this store does not lack."""

    async def duplicates(self) -> list[str]:
        """The ids that the database holds twice. Only a store that keeps a job in several keys can have some."""

    def drop_answer(self, skip: int) -> None:
        """Drop the answer to one statement, once: the one after so many others. A negative number ends it."""

    @property
    def dropped_answers(self) -> int:
        """The number of answers that were dropped so far."""

    @property
    def connections(self) -> int:
        """The number of connections that clients have made so far."""


class ServerBehindProxy:
    """The faults that are the same for each server: those of its process, and those of the network."""

    def __init__(self, server: Server, proxy: Proxy, folder: Path, direct_url: str) -> None:
        self.server = server
        self.proxy = proxy
        self.direct_url = direct_url
        self.url = proxy.url(direct_url)
        self.workers = WorkerProcesses(folder, self.url)
        self.faults: Mapping[Operation, Fault] = {
            "kill": self._killed,
            "pause": self._paused,
            "cut": self._cut,
            "stall": self._stalled,
            "refuse": self._refused,
            "vanish": self._vanished,
            "delay": self._delayed,
            "drop_answer": self._answers_dropped,
        }

    async def duplicates(self) -> list[str]:
        """A job is one row or one document, whose id is its primary key."""
        return []

    def drop_answer(self, skip: int) -> None:
        """Count statements, and drop the answer to the one after `skip`."""
        left = skip

        def is_next(_: bytes) -> bool:
            nonlocal left
            left -= 1
            return left == -1

        self.proxy.drop_answer(is_next if skip >= 0 else lambda _: False)

    @property
    def dropped_answers(self) -> int:
        """As the proxy counts them."""
        return self.proxy.dropped_answers

    @property
    def connections(self) -> int:
        """As the proxy counts them."""
        return self.proxy.accepted

    @contextlib.asynccontextmanager
    async def _killed(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self.server.kill)
        try:
            yield
        finally:
            self.restart()

    def restart(self) -> None:
        """Start the killed server, in this thread: it ends with the thread that started it."""
        self.server.start()

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()

    def _cut(self) -> AbstractAsyncContextManager[None]:
        return again_and_again(self.proxy.cut)

    @contextlib.asynccontextmanager
    async def _stalled(self) -> AsyncIterator[None]:
        self.proxy.stall()
        try:
            yield
        finally:
            self.proxy.go_on()

    @contextlib.asynccontextmanager
    async def _refused(self) -> AsyncIterator[None]:
        self.proxy.refuse()
        self.proxy.cut()
        try:
            yield
        finally:
            self.proxy.accept()

    @contextlib.asynccontextmanager
    async def _vanished(self) -> AsyncIterator[None]:
        """Like a router that forgets all connections; at the end it is restarted."""
        self.proxy.half_open()
        try:
            yield
        finally:
            self.proxy.cut()

    @contextlib.asynccontextmanager
    async def _delayed(self) -> AsyncIterator[None]:
        self.proxy.delay(DELAY_S)
        try:
            yield
        finally:
            self.proxy.delay(0)

    @contextlib.asynccontextmanager
    async def _answers_dropped(self) -> AsyncIterator[None]:
        async with again_and_again(lambda: self.drop_answer(0)):
            yield
        self.drop_answer(-1)


@contextlib.asynccontextmanager
async def again_and_again(act: Callable[[], object]) -> AsyncIterator[None]:
    """Do this as long as the block lasts, with pauses in between."""

    async def repeat() -> None:
        while True:
            act()
            await asyncio.sleep(AGAIN_AFTER_S)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
