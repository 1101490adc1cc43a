"""The verbs announce, workers, order_stop and tallies. BullMQ's workers are known by the names of their connections."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from jobmill.core.announcing import ANNOUNCED_MS, CARD_KEPT_MS, Orders, WorkerCard
from jobmill.core.tallies import TALLIES_KEPT_MS, Tally, first_kept_ms, in_all_steps, series, stored_step
from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.common.chunks import chunks
from jobmill.stores.common.flat_tallies import flat_counts, flat_texts, from_flat
from jobmill.stores.redis.codec import fields
from jobmill.stores.redis.connection.connect import connection_name
from jobmill.stores.redis.connection.pipelined import pack
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, RedisContext, flat
from jobmill.stores.redis.scripts import ANNOUNCE

# A tally changes until its step is over; the time for which it is kept begins at the start of the step.
_KEPT = {str(step_ms): kept_ms for step_ms, kept_ms in TALLIES_KEPT_MS.items()}


async def announce(c: RedisContext, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
    """See the port. One script call."""
    request = {
        "id": card.id,
        "card": msgspec.json.encode(structs.replace(card, seen_ms=c.clock.now())).decode(),
        "announcement": card.announcement,
        "leaves": leaves,
        "tallies": [
            (str(one.step_ms), one.start_ms, _member(one), flat(flat_counts(one)), flat(flat_texts(one)))
            for one in in_all_steps(tallies)
        ],
    }
    return Orders(stop=bool(await _run(c, **request)))


async def forget_old(c: RedisContext) -> None:
    """Remove cards and tallies that are no longer kept."""
    await _run(c)


async def _run(c: RedisContext, **request: Any) -> Any:
    return await c.run_operation(ANNOUNCE, kept=_KEPT, card_kept=CARD_KEPT_MS, **request)


def _member(tally: Tally) -> str:
    """The name of a tally in its step. No name of a queue contains a blank, so blanks separate the three parts."""
    return f"{tally.start_ms} {tally.queue} {tally.name}"


async def workers(c: RedisContext) -> list[WorkerCard]:
    """See the port. If the server lists its connections, the result also has the connected workers of BullMQ."""
    ours = await _cards(c)
    cards = [*ours, *await _foreign(c, ours)]
    return sorted(cards, key=lambda card: (card.started_ms, card.id))


async def _cards(c: RedisContext) -> list[WorkerCard]:
    key = f"{c.operations}:workers"
    cards = [msgspec.json.decode(card, type=WorkerCard) for card in await c.client.call(key, "HVALS", key)]
    return [card for card in cards if c.clock.now() - card.seen_ms < ANNOUNCED_MS]


async def order_stop(c: RedisContext, ids: Sequence[str]) -> list[str]:
    """See the port."""
    there = {card.id for card in await _cards(c)}
    found = [id for id in dict.fromkeys(ids) if id in there]
    if found:
        key = f"{c.operations}:stops"
        await c.client.call(key, "SADD", key, *found)
    return found


async def tallies(
    c: RedisContext, since_ms: int, until_ms: int, step_ms: int, queue: str | None = None, name: str | None = None
) -> list[Tally]:
    """See the port."""
    stored_ms = stored_step(step_ms)
    key = f"{c.operations}:tallies:{stored_ms}"
    first_ms = first_kept_ms(stored_ms, since_ms, c.clock.now())
    members = [one.decode() for one in await c.client.call(key, "ZRANGEBYSCORE", key, first_ms, f"({until_ms}")]
    about = [(member, *member.split(" ", 2)) for member in members]
    wanted = [one for one in about if queue in (None, one[2]) and name in (None, one[3])]
    found: list[Tally] = []
    for some in chunks(wanted, MAX_JOBS_PER_CALL):
        commands = [("HGETALL", f"{c.operations}:tally:{stored_ms}:{member}") for member, *_ in some]
        for (_, start, its_queue, its_name), reply in zip(some, await c.client.many(key, commands), strict=True):
            texts = {field.decode(): value.decode() for field, value in fields(reply).items()}
            if texts:
                found.append(from_flat(int(start), stored_ms, its_queue, its_name, texts))
    return series(found, step_ms)


# ---------------------------------------------------------------------------------------------------- BullMQ's workers


async def _foreign(c: RedisContext, ours: Iterable[WorkerCard]) -> list[WorkerCard]:
    """Workers that have a connection but no card. Workers of Jobmill use the same names of connections: see wake.py."""
    known = {(queue, connection_name(card.name)) for card in ours for queue in card.queues}
    connections = c.client.here()
    found: list[WorkerCard] = []
    try:
        for address in await connections.primaries():
            listed = await (await connections.at(address)).send(pack(("CLIENT", "LIST", "TYPE", "normal")))
            found += _listed(c, listed.decode(errors="replace"))
    except StoreUnavailable:
        raise
    except StoreError:
        return []  # the ACL, or the provider, does not allow CLIENT LIST
    return [card for card in found if (card.queues[0], card.name) not in known]


def _listed(c: RedisContext, text: str) -> Iterator[WorkerCard]:
    now_ms = c.clock.now()
    for line in text.splitlines():
        client = dict(field.partition("=")[::2] for field in line.split(" "))
        prefix, _, rest = client.get("name", "").rpartition(f"{connection_name(c.url.prefix)}:")
        encoded, suffix, worker = rest.partition(":w:")
        # A name with ":qe" instead of ":w:" and a worker belongs to a connection that listens for events.
        if prefix or not encoded or (":" in encoded and not suffix):
            continue
        try:
            queue = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue  # one of our connections for calls
        yield WorkerCard(
            id=f"bullmq {client['addr']} {client['id']}",
            name=worker,
            host=client["addr"].rpartition(":")[0],
            pid=0,
            version="",
            python="",
            started_ms=now_ms - 1000 * int(client["age"]),
            queues=(queue,),
            names=(),
            concurrency=0,
            seen_ms=now_ms,
            system="bullmq",
        )
