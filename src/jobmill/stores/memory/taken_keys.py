"""Unique keys that stay taken for a time, whatever becomes of their jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct, field

#: Queue, name, unique key.
Key: TypeAlias = tuple[str, str, str]


class TakenKeys(Struct):
    """The keys with the ids of the jobs that took them, and until when."""

    until: dict[Key, tuple[str, int]] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)

    def take(self, key: Key, id: str, until_ms: int) -> None:
        """A job takes a key."""
        if key in self.until:
            self.keys.pop(self.until[key][0], None)
        self.until[key] = (id, until_ms)
        self.keys[id] = key

    def holder(self, key: Key, now_ms: int) -> str | None:
        """The id of the job that took the key, while the key is taken."""
        id, until_ms = self.until.get(key, ("", 0))
        return id if until_ms > now_ms else None

    def free(self, ids: Iterable[str]) -> None:
        """The keys of these jobs are free again."""
        for id in ids:
            if (key := self.keys.pop(id, None)) is not None:
                del self.until[key]

    def purge(self, now_ms: int) -> None:
        """Forget keys whose time is over."""
        self.free([id for id, until_ms in self.until.values() if until_ms <= now_ms])
