"""Ids: BullMQ's are unique in their queue, the port's in the store.

The id of a job that Jobmill made is the same in both; any other id, such as BullMQ's counted ones, is `queue:id` in the
port. A recurring job keeps one id from run to run, `queue:repeat:<scheduler>`, while each run is a job of BullMQ's,
`repeat:<scheduler>:<ms>`.
"""

from __future__ import annotations

from typing import TypeAlias

from jobmill.errors import InvalidValue

RUN = "repeat:"

#: BullMQ's id of a job in its queue; the bytes of an id that is no text.
LocalId: TypeAlias = str | tuple[int, ...]

#: Keys of the queue itself: a job with such an id would overwrite them. See repair.lua.
_QUEUE_KEYS = frozenset(
    {"id", "meta", "pc", "events", "marker", "limiter", "repeat", "stalled", "stalled-check"}
    | {"wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed"}
)


def check_no_queue_key(id: str) -> None:
    """Refuse an id whose key, in its queue, is not a job's."""
    if id in _QUEUE_KEYS:
        raise InvalidValue("id", "an id that is not the name of a key of BullMQ's", id, "prefix it, such as job-" + id)


def readable_id(raw: bytes) -> tuple[str, LocalId]:
    """An id that the server sent: as text, and as scripts take it."""
    try:
        id = raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="backslashreplace"), tuple(raw)
    return id, id


def port_id(queue: str, id: str, ours: bool, *, is_latest: bool = True) -> str:
    """The port's id of a job. `is_latest`: it is the present run of a recurring job, or the last one."""
    if id.startswith(RUN):
        return f"{queue}:{id.rpartition(':')[0] if is_latest and id.count(':') == 2 else id}"
    return id if ours and ":" not in id and not id.isdecimal() else f"{queue}:{id}"


def local_id(queue: str, id: str) -> str:
    """BullMQ's id of a job in this queue."""
    return id[len(queue) + 1 :] if id.startswith(queue) and id[len(queue) : len(queue) + 1] == ":" else id


def queue_of(id: str) -> str | None:
    """The queue that an id names; None where it names none."""
    queue, colon, _ = id.partition(":")
    return queue if colon and queue else None


def scheduler_id(name: str, key: str) -> str:
    """The job scheduler of a recurring job. No name contains a blank, so the blank separates both parts."""
    return f"{name} {key}".replace("%", "%25").replace(":", "%3A")


def scheduler_key(sid: str, name: str) -> str:
    """The key of a recurrence, from its scheduler; the scheduler's id where Node made it."""
    text = sid.replace("%3A", ":").replace("%25", "%")
    return text.removeprefix(f"{name} ")


def deduplication_id(name: str, key: str) -> str:
    """A unique key is unique within a name, BullMQ's deduplication id within a queue."""
    return f"{name} {key}"
