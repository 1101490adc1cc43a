"""Lanes: the settings of single lanes, what the verb lanes reads, and what flush_outbox does. See lua/lib/lanes.lua."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, structs

from jobmill.core.queue_settings import LaneChange, LaneSettings
from jobmill.core.values import LANE_LIMIT, Lane
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.context import RedisContext, as_json
from jobmill.stores.redis.queues import registered_queues
from jobmill.stores.redis.scripts import CONFIGURE_LANE, HEAL_LANES, LANES

# The server looks at each job that has a slot.
LANES_PER_CALL = 20
# Of the lanes that flush_outbox looks at.
LANES_HEALED_PER_CALL = 250

_decode_texts = msgspec.json.Decoder(dict[str, str]).decode
_decode_settings = msgspec.json.Decoder(LaneSettings).decode


async def configure_lane(c: RedisContext, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    """See the port."""
    given = {name: value for name, value in structs.asdict(change).items() if value is not UNSET}
    await c.register(queue)
    own, more = await c.run(
        CONFIGURE_LANE,
        queue,
        c.clock.now(),
        lane=lane,
        set={name: as_json(value) for name, value in given.items() if value is not None},
        clear=[name for name, value in given.items() if value is None],
    )
    while more:  # a call takes back the slots of 1,000 jobs
        _, more = await c.run(CONFIGURE_LANE, queue, c.clock.now(), lane=lane, set={}, clear=[])
    return _settings(own)


def _settings(own: bytes) -> LaneSettings:
    """The settings of a lane as configure_lane.lua stores them: each value is a text with JSON."""
    texts = _decode_texts(own) if own else {}
    return _decode_settings("{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}")


async def lanes(
    c: RedisContext, queue: str, names: Sequence[str] | None = None, after: str | None = None, limit: int = 100
) -> list[Lane]:
    """See the port."""
    found: list[Lane] = []
    if names is not None:
        wanted = sorted(name for name in set(names) if after is None or name > after)
        for some in chunks(wanted, LANES_PER_CALL):
            found += await _lanes(c, queue, names=some)
        return found[:limit]
    while len(found) < limit:
        some = await _rows(c, queue, after=after or "", limit=min(LANES_PER_CALL, limit - len(found)))
        found += _read(queue, some)
        if not some:
            break
        after = some[-1][0].decode()
    return found


async def _lanes(c: RedisContext, queue: str, **which: Any) -> list[Lane]:
    return _read(queue, await _rows(c, queue, **which))


async def _rows(c: RedisContext, queue: str, **which: Any) -> list[Any]:
    rows: list[Any] = await c.run(LANES, queue, c.clock.now(), **which, most=LANE_LIMIT, reads=True)
    return rows


def _read(queue: str, rows: list[Any]) -> list[Lane]:
    """Lanes as lanes.lua returns them, without those that have neither jobs nor settings."""
    found = []
    for name, own, running, admitted, ready, later, limited_ms in rows:
        lane = Lane(
            queue=queue,
            name=name.decode(),
            settings=_settings(own),
            running=running,
            admitted=admitted,
            ready=ready,
            later=later,
            limited_until_ms=limited_ms if limited_ms >= 0 else None,
        )
        if lane != Lane(queue=queue, name=lane.name):
            found.append(lane)
    return found


async def heal_lanes(c: RedisContext) -> None:
    """Apply rules that were changed to the lanes that have not followed yet, and look for slots that Node has left."""
    queues = await registered_queues(c)
    for queue, (has_lanes,) in zip(queues, await c.each(queues, [("HEXISTS", ":meta", "jmlanes")]), strict=True):
        more = has_lanes
        while more:
            _, more = await c.run(HEAL_LANES, queue, c.clock.now(), limit=LANES_HEALED_PER_CALL)
