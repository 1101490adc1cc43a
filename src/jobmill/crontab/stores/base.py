"""What the stores of this package share: all methods of the port, over `lock_many` and one method that writes."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from jobmill.crontab.job import Changes, CrontabJob, Ending


class Write(Struct, frozen=True, kw_only=True):
    """A write to one document, with the fields of `Changes` and `Ending`. If it removes, only the fence counts."""

    id: Any
    locked_until: datetime | None
    sleep_until: datetime | UnsetType | None = UNSET
    auto_remove: bool | UnsetType = UNSET
    remove: bool = False


class DocumentStore(abc.ABC):
    """The base of the stores."""

    def __init__(self, clock: Callable[[], int] | None) -> None:
        self._clock = clock or process_ms

    @abc.abstractmethod
    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due documents."""

    @abc.abstractmethod
    async def _write(self, writes: Sequence[Write]) -> list[bool]:
        """Make the writes. Returns one answer each: whether a document matched."""

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """Lock the earliest due document."""
        return next(iter(await self.lock_many(lock_until, 1)), None)

    async def update(self, id: Any, changes: Changes, /) -> bool:
        """Write the fields that are set."""
        (answer,) = await self._write([Write(id=id, **structs.asdict(changes))])
        return answer

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool:
        """Delete the document."""
        (answer,) = await self._write([Write(id=id, locked_until=locked_until, remove=True)])
        return answer

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """Write each ending under its own fence, all in as few calls as possible."""
        return await self._write(
            [
                Write(id=one.id, locked_until=one.locked_until, sleep_until=one.sleep_until, remove=one.remove)
                for one in endings
            ]
        )

    async def migrate(self) -> None:  # noqa: B027 - not every store needs an index
        """Create the index that the lock needs, if the store has one."""

    async def close(self) -> None:  # noqa: B027 - not every store has a connection
        """Close the connections that the store opened."""


def process_ms() -> int:
    """Milliseconds since 1970, rounded down. As in mongodb-cron, the clock of the process decides what is due."""
    return time.time_ns() // 1_000_000
