"""What a store's author hands to the contract: an opened, empty store, and means to move its time and harm its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jobmill.store import Store


class Harness(Protocol):
    """One store under test. A fixture makes a fresh one for each test and closes its store afterwards.

    The store's time stands still except for `advance`, so that tests can speak of single milliseconds.
    """

    #: Opened and empty.
    store: Store

    async def advance(self, seconds: float) -> None:
        """Move the time of the store, and of every other connection to its data, on by whole milliseconds."""

    async def another(self) -> Store:
        """A second, opened connection to the same data, for the loop that calls this; the caller closes it.

        A store that lives in one process returns itself, and is then used from several threads.
        """

    async def corrupt(self, id: str) -> None:
        """Make the stored payload of this waiting job unreadable, by the store's own means."""


class ProcessHarness(Harness, Protocol):
    """One store whose data several processes share."""

    @property
    def opener(self) -> Callable[[], Store]:
        """Makes an unopened store on the same data, by the real clock, in another process.

        It is pickled: `functools.partial(MyStore, url)` does.
        """


class WithinHarness(Harness, Protocol):
    """One store that also enqueues within its callers' transactions."""

    async def begin(self) -> Any:
        """A connection or session of the caller's own, in a transaction."""

    async def commit(self, connection: Any) -> None:
        """Commit that transaction and give the connection back."""

    async def rollback(self, connection: Any) -> None:
        """Roll that transaction back and give the connection back."""
