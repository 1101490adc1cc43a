"""The verb fsck: whether the data is consistent. What pages of ids suggest is checked in the step that repairs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, RedisContext
from jobmill.stores.redis.flows import (
    STAGED_MS,
    TEXTS,
    finish_staged,
    relays_by_key,
    staged_jobs,
    unfinished_flows,
)
from jobmill.stores.redis.ids import LocalId, readable_id
from jobmill.stores.redis.queues import all_queues, escaped, registered_queues
from jobmill.stores.redis.read import LISTS, SETS
from jobmill.stores.redis.scripts import FSCK

# At most this many records are repaired in a call, by check.
MAX_REPAIRED = 10_000
_IDS_READ_AT_ONCE = 5_000
# A worker that has taken the marker claims at once. After this time nobody has.
MARKER_MS = 10_000

#: By check: what is damaged, and how a repair changes it.
CHECKS = {
    "id_in_two_places": ("{} in several lists or sets at once", "leaves each job in one of them"),
    "id_without_hash": ("{} without data", "removes their ids"),
    "logs_without_job": ("{} removed, but have log lines", "removes the lines"),
    "dependencies_gone": ("{} waiting for jobs that have ended or are gone", "lets them run"),
    "waiting_children_unheld": ("{} waiting for children without having any, and nobody holds them", "lets them run"),
    "staged_alone": ("{} held as part of a flow that nobody enqueues any more", "lets them run"),
    "flow_unfinished": (
        "{} not enqueued completely",
        "finishes those whose jobs are all in the store, and removes the jobs of the others",
    ),
    "relay_astray": ("{} not connected with the job whose dependents they tell", "connects or removes them"),
    "flow_index": ("{} removed, but in the index of a flow", "removes them from it"),
    "lane_slot": ("{} with a slot in a lane although ended or removed", "gives the slots to others"),
    "lane_order": ("{} in the order of a lane that does not hold them", "removes them from it"),
    "lane_lost": ("{} held by a lane without a place in its order", "puts them into it"),
    "lane_index": ("{} without an entry in the index of lanes", "writes the entries"),
    "marker_missing": ("{} without the marker that wakes workers, although jobs wait", "writes the marker"),
}


_NOUNS = {"lane_index": "lane", "marker_missing": "queue", "flow_unfinished": "flow", "relay_astray": "relay"}


class _Found:
    """The damage that each check has found so far."""

    def __init__(self, c: RedisContext, repair: bool) -> None:
        self._context = c
        self._repair = repair
        self._ids: dict[str, list[str]] = {check: [] for check in CHECKS}
        self._repaired = dict.fromkeys(CHECKS, 0)

    async def check(
        self, check: str, queue: str, ids: Iterable[LocalId], source: str = "", relays: str | None = None, **more: Any
    ) -> None:
        """Check these records of a queue, or of a queue of relays."""
        c = self._context
        request: dict[str, Any] = {"check": check, "source": source, "marker_ms": MARKER_MS, "texts": TEXTS, **more}
        for some in chunks(list(ids), MAX_JOBS_PER_CALL):
            repair = self._repair and self._repaired[check] < MAX_REPAIRED
            request |= {"ids": some, "repair": repair, "reads": not repair}
            if relays is None:
                found = await c.run(FSCK, queue, c.clock.now(), **request)
            else:
                found = await c.run_on_relays(FSCK, relays, c.clock.now(), **request)
            self._ids[check] += [f"{relays or queue}:{id.decode(errors='replace')}" if id else queue for id in found]
            self._repaired[check] += len(found) if repair else 0

    async def check_staged(self, queue: str) -> None:
        """Check the large flows in the slot of a queue."""
        left = await unfinished_flows(self._context, queue)
        self._ids["flow_unfinished"] += left
        if self._repair and left:
            await finish_staged(self._context, queue)
            self._repaired["flow_unfinished"] += len(left)

    def findings(self) -> list[Finding]:
        """One finding for each check."""
        return [self._finding(check, *texts) for check, texts in CHECKS.items()]

    def _finding(self, check: str, damage: str, repair: str) -> Finding:
        ids, repaired = self._ids[check], self._repaired[check]
        noun = _NOUNS.get(check, "job")
        number = f"{len(ids) or 'no'} {noun}{'' if len(ids) == 1 else 's'} {'is' if len(ids) == 1 else 'are'}"
        return Finding(
            check=check,
            level="error" if len(ids) > repaired else "ok",
            text=damage.format(number),
            evidence={"ids": ids[:IDS_SHOWN]} if ids else {},
            remedy=f"jobmill fsck --repair {repair}" if len(ids) > repaired else None,
            count=len(ids),
            can_repair=True,
            repaired=repaired,
        )


async def fsck(c: RedisContext, *, repair: bool = False) -> list[Finding]:
    """See the port."""
    found = _Found(c, repair)
    for queue in await all_queues(c):
        await _check_queue(c, queue, found)
    for relays_key, queue in relays_by_key(c, await registered_queues(c)).items():
        await found.check_staged(queue)
        keys = await c.client.scan(f"{escaped(relays_key)}:*:next", "zset")
        relay_ids = [key[len(relays_key) + 1 : -len(":next")] for key in keys]
        own = [id for id in relay_ids if b":" not in id]
        await found.check("relay_astray", queue, _readable(own), relays=relays_key)
    await _check_flow_index(c, found)
    logs: dict[str, list[str]] = {}
    prefix = f"{c.url.prefix}:"
    for key in await c.client.scan(f"{escaped(prefix)}*:logs", "list"):
        queue, _, id = key.decode(errors="replace")[len(prefix) : -len(":logs")].partition(":")
        logs.setdefault(queue, []).append(id)
    for queue, ids in logs.items():
        await found.check("logs_without_job", queue, ids)
    return found.findings()


async def _check_flow_index(c: RedisContext, found: _Found) -> None:
    for key in await c.client.scan(f"{escaped(c.url.prefix)}:*:jobmill:flow:*", "set"):
        queue, _, flow = key.decode(errors="replace")[len(c.url.prefix) + 1 :].partition(":jobmill:flow:")
        await found.check("flow_index", queue, _readable(await c.client.call(key.decode(), "SMEMBERS", key)), flow)


async def _check_queue(c: RedisContext, queue: str, found: _Found) -> None:
    seen: set[bytes] = set()
    several: set[bytes] = set()
    for place in SETS:
        ids = await _ids(c, f"{c.key(queue)}:{place}", place)
        several.update(seen.intersection(ids), (id for id, times in Counter(ids).items() if times > 1))
        seen.update(ids)
        await found.check("id_without_hash", queue, _readable(ids), place)
        if place == "waiting-children":
            await found.check("dependencies_gone", queue, _readable(ids))
            await found.check("waiting_children_unheld", queue, _readable(ids))
            listed = dict.fromkeys(await staged_jobs(c, queue), True) if ids else {}
            await found.check("staged_alone", queue, _readable(ids), listed=listed, staged_ms=STAGED_MS)
        if place == "waiting-children" and ids:
            await found.check("lane_lost", queue, _readable(ids))
    await found.check("id_in_two_places", queue, _readable(several))
    await _check_lanes(c, queue, found)
    await found.check("marker_missing", queue, [""])


async def _check_lanes(c: RedisContext, queue: str, found: _Found) -> None:
    """Check the keys of lanes: see lua/lib/lanes.lua."""
    base = f"{c.key(queue)}:jobmill:"
    if not await c.client.call(f"{c.key(queue)}:meta", "HEXISTS", f"{c.key(queue)}:meta", "jmlanes"):
        return
    lanes: set[str] = set()
    for place in ("lanes:slots", "lanes:begun"):
        slots = await _ids(c, base + place, place)
        lanes.update(slot.partition(b"\0")[0].decode() for slot in slots)
        await found.check("lane_slot", queue, _readable(slots))
    for key in await c.client.scan(f"{escaped(base)}lane:*", "zset"):
        lane = key.decode()[len(base) + len("lane:") :]
        lanes.add(lane)
        await found.check("lane_order", queue, _readable(await _ids(c, key.decode(), "lane:")), lane)
    await found.check("lane_index", queue, sorted(lanes))


async def _ids(c: RedisContext, key: str, place: str) -> Sequence[bytes]:
    """All ids in a list or sorted set. While others change it, some may be missing or come twice."""
    ids: list[bytes] = []
    while True:
        start = len(ids)
        command = "LRANGE" if place in LISTS else "ZRANGE"
        part = await c.client.call(key, command, key, start, start + _IDS_READ_AT_ONCE - 1)
        ids += part
        if len(part) < _IDS_READ_AT_ONCE:
            return ids


def _readable(ids: Iterable[bytes]) -> list[LocalId]:
    return [readable_id(id)[1] for id in ids]
