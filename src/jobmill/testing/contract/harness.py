"""The harness: what the author of a store gives to the contract, namely an empty store and control over its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jobmill.store import Store


class Harness(Protocol):
    """One store under test. A fixture creates a new one for each test, and closes its store afterwards.

    Only `advance` moves the time of the store, so that tests can check single milliseconds.
    """

    #: An opened and empty store.
    store: Store

    async def advance(self, seconds: float) -> None:
        """Move the time forward by whole milliseconds, for the store and every other connection to its data."""

    async def another(self) -> Store:
        """Returns a second, opened connection to the same data, for the calling event loop. The caller closes it.

        A store inside one process returns itself, and is then used from several threads.
        """

    async def corrupt(self, id: str) -> None:
        """Make the stored payload of this waiting job unreadable."""


class ProcessHarness(Harness, Protocol):
    """One store whose data several processes share."""

    @property
    def opener(self) -> Callable[[], Store]:
        """Creates an unopened store on the same data, with the real clock, in another process.

        It must be picklable, for example `functools.partial(MyStore, url)`.
        """


class WithinHarness(Harness, Protocol):
    """One store that can enqueue within transactions of its callers."""

    async def begin(self) -> Any:
        """Returns a connection or session of the caller, with an open transaction."""

    async def commit(self, connection: Any) -> None:
        """Commit the transaction and release the connection."""

    async def rollback(self, connection: Any) -> None:
        """Roll back the transaction and release the connection."""
