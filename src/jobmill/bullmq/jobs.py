"""Jobs as Node adds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from jobmill.core.limits import check_id, check_int, check_name, check_priority
from jobmill.errors import InvalidValue


class Deduplication(Struct, frozen=True, kw_only=True):
    """BullMQ's deduplication: simple, or for a time (`ttl`, ms), in the modes that its documentation describes."""

    id: str
    ttl: int | None = None
    extend: bool = False
    replace: bool = False
    reschedule: bool = False
    keep_last_if_active: bool = False

    def as_opts(self) -> dict[str, Any]:
        """As in `opts.de`."""
        given = {"id": self.id, "ttl": self.ttl, "extend": self.extend, "replace": self.replace}
        given |= {"reschedule": self.reschedule, "keepLastIfActive": self.keep_last_if_active}
        return {name: value for name, value in given.items() if value not in (None, False)}


class Add(Struct, frozen=True, kw_only=True):
    """One job as Node's `queue.add(name, data, opts)` takes it; durations in ms."""

    name: str
    data: Any = {}
    job_id: str | None = None
    lifo: bool = False
    delay: int = 0
    priority: int = 0
    attempts: int | None = None
    backoff: int | Mapping[str, Any] | None = None
    deduplication: Deduplication | None = None
    remove_on_complete: bool | int | Mapping[str, int] | None = None
    remove_on_fail: bool | int | Mapping[str, int] | None = None
    #: Further opts of BullMQ's, under its own names.
    opts: Mapping[str, Any] = {}

    def checked(self) -> dict[str, Any]:
        """The job as the Redis store takes it; InvalidValue where a value is out of range."""
        check_name(self.name)
        if self.job_id is not None:
            check_id(self.job_id)
        if self.deduplication is not None and not isinstance(self.deduplication, Deduplication):
            raise InvalidValue("deduplication", "a jobmill.bullmq.Deduplication", self.deduplication)
        dedup = None if self.deduplication is None else self.deduplication.as_opts()
        return {
            "id": self.job_id,
            "name": self.name,
            "data": self.data,
            "opts": self._opts(dedup),
            "delay": self.delay,
            "priority": self.priority,
            "special": {"lifo": self.lifo, "dedup": dedup, "deid": dedup and dedup["id"]},
        }

    def _opts(self, dedup: dict[str, Any] | None) -> dict[str, Any]:
        given = {
            "attempts": None if self.attempts is None else check_int(self.attempts, "attempts", 0),
            "backoff": {"type": "fixed", "delay": self.backoff} if isinstance(self.backoff, int) else self.backoff,
            "delay": check_int(self.delay, "delay", 0) or None,
            "priority": check_priority(self.priority) or None,
            "lifo": self.lifo or None,
            "removeOnComplete": self.remove_on_complete,
            "removeOnFail": self.remove_on_fail,
            "de": dedup,
        }
        return {"attempts": 0, **self.opts, **{name: value for name, value in given.items() if value is not None}}
