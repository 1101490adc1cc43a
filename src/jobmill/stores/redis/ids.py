"""Ids: BullMQ's are unique in their queue, the port's in the store.

The id of a job that Jobmill made stands alone; any other, such as BullMQ's counted ones, is `queue:id`. A recurring job
keeps one id from run to run, `queue:repeat:<scheduler>`, while each run is a job of BullMQ's own,
`repeat:<scheduler>:<ms>`.
"""

from __future__ import annotations

from jobmill.errors import InvalidValue

RUN = "repeat:"

#: The queue's own keys stand beside those of its jobs: a job of such an id would take their place. See aside.lua.
_OWN_KEYS = frozenset(
    {
        "id",
        "meta",
        "pc",
        "events",
        "marker",
        "limiter",
        "repeat",
        "stalled",
        "stalled-check",
        "wait",
        "paused",
        "active",
    }
    | {"prioritized", "delayed", "waiting-children", "completed", "failed"}
)


def check_no_own_key(id: str) -> None:
    """Refuse an id, as BullMQ calls it in its queue, whose key is not a job's."""
    if id in _OWN_KEYS:
        raise InvalidValue("id", "an id that is not the name of a key of BullMQ's", id, "prefix it, such as job-" + id)


def port_id(queue: str, id: str, ours: bool, *, is_latest: bool = True) -> str:
    """How the port knows a job of this queue; `is_latest`: of a recurring job's runs the present one, or the last."""
    if id.startswith(RUN):
        return f"{queue}:{id.rpartition(':')[0] if is_latest and id.count(':') == 2 else id}"
    return id if ours and ":" not in id and not id.isdecimal() else f"{queue}:{id}"


def local_id(queue: str, id: str) -> str:
    """What BullMQ calls it in this queue."""
    return id[len(queue) + 1 :] if id.startswith(queue) and id[len(queue) : len(queue) + 1] == ":" else id


def queue_of(id: str) -> str | None:
    """The queue that an id names; None for one that stands alone."""
    queue, colon, _ = id.partition(":")
    return queue if colon and queue else None


def scheduler_id(name: str, key: str) -> str:
    """The job scheduler of a recurring job: its parts are told apart by the blank, which no name has."""
    return f"{name} {key}".replace("%", "%25").replace(":", "%3A")


def scheduler_key(sid: str, name: str) -> str:
    """The key of a recurrence, from its scheduler; of one that Node made, its id."""
    text = sid.replace("%3A", ":").replace("%25", "%")
    return text.removeprefix(f"{name} ")


def deduplication_id(name: str, key: str) -> str:
    """A unique key is unique within a name, BullMQ's deduplication id within a queue."""
    return f"{name} {key}"
