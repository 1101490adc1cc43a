"""For stores that hold whole jobs in Python: unique keys that stay taken for a time, whatever becomes of their jobs."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from jobmill.core.values import NewJob


class TakenKeys(Struct):
    """The ids of the jobs that took keys, and until when; and the keys by these ids."""

    until: dict[str, tuple[str, int]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def take(self, new: NewJob, now_ms: int) -> str | None:
        """Let a new job take its key, if its policy says for how long; the id of the job that has the key instead."""
        if new.policy is None or new.policy.for_ms is None:
            return None
        key = f"{new.queue}\n{new.name}\n{new.unique_key}"
        id, until_ms = self.until.get(key, ("", 0))
        if until_ms > now_ms:
            return id
        self.free([id])
        self.until[key] = (new.id, now_ms + new.policy.for_ms)
        self.keys[new.id] = key
        return None

    def free(self, ids: Iterable[str]) -> None:
        """The keys of these jobs are free again."""
        for id in ids:
            if (key := self.keys.pop(id, None)) is not None:
                del self.until[key]

    def purge(self, now_ms: int) -> None:
        """Forget keys whose time is over."""
        self.free([id for id, until_ms in self.until.values() if until_ms <= now_ms])
