"""The harness of a crontab store: the store, its time, and a way to read its documents."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import msgspec

from jobmill.crontab import BatchCrontabStore, MemoryCrontab
from jobmill.testing import ManualClock


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A document as it lies in the database."""

    sleep_until: datetime | None
    interval: str | None = None
    repeat_until: datetime | None = None
    auto_remove: bool = False
    data: Any = None


class OurStore(BatchCrontabStore, Protocol):
    """Methods that our stores also have; the store of a user need not have them."""

    async def migrate(self) -> None:
        """Make the index that the lock needs, where it is missing."""

    async def close(self) -> None:
        """Let go of connections that this store made; those that it was given stay open."""


class CrontabHarness(Protocol):
    """One store under test, empty, whose time is `clock`."""

    store: OurStore
    clock: ManualClock

    async def add(self, id: str, document: Kept) -> None:
        """Write a document by the database's own means. `data` is a dict of texts and numbers, or None.

        Where the whole document is what the crontab gives out as data, the fields of `data` are fields of it.
        """

    async def kept(self, id: str) -> Kept | None:
        """The document as it is now, without `data`; None if it does not exist."""

    async def another(self) -> OurStore:
        """A second store on the same documents, with the same clock and its own connection."""

    async def close(self) -> None:
        """End it, and all others."""


class MemoryHarness:
    """Everything is in one object."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._memory = MemoryCrontab(clock=self.clock)
        self.store: OurStore = self._memory

    async def add(self, id: str, document: Kept) -> None:
        await self._memory.add(id, **{name: getattr(document, name) for name in Kept.__struct_fields__})
        self._memory.documents[id].sleep_until = document.sleep_until

    async def kept(self, id: str) -> Kept | None:
        document = self._memory.documents.get(id)
        if document is None:
            return None
        return Kept(
            sleep_until=document.sleep_until,
            interval=document.interval,
            repeat_until=document.repeat_until,
            auto_remove=document.auto_remove,
        )

    async def another(self) -> OurStore:
        return self.store

    async def close(self) -> None:
        await self.store.close()
