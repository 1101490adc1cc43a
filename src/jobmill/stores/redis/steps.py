"""Durable runs: suspensions, and the verbs record_step, recorded and signal. All is in fields of the job's hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from jobmill.core.flows import Recorded, Signal, Signalled, Step
from jobmill.core.values import Lease, Refused, Settled
from jobmill.errors import InvalidValue
from jobmill.stores.redis.codec import fields
from jobmill.stores.redis.context import RedisContext, as_json
from jobmill.stores.redis.flows import enqueue_children
from jobmill.stores.redis.ids import local_id
from jobmill.stores.redis.read import queues_of
from jobmill.stores.redis.scripts import GET, SIGNAL, STEP
from jobmill.stores.redis.settle import id_of, settle_request

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

#: What the names of fields begin with: `jms:0` is the first step, `jmi:go` the signal "go".
_STEP, _SIGNAL = b"jms:", b"jmi:"


class _StoredStep(Struct, frozen=True, omit_defaults=True):
    """The field of a step."""

    name: str
    result: Raw = Raw(b"null")
    error: str | None = None


_decode_step = msgspec.json.Decoder(_StoredStep).decode


async def suspend(c: RedisContext, settlement: Settlement, now_ms: int) -> Settled:
    """Suspend a run that waits for children: they are enqueued in the same step, and the job waits for them."""
    request = settle_request(settlement, now_ms, feed_on=True) | {"stages": True}
    try:
        return "done" if await enqueue_children(c, settlement, request) else "lost"
    except InvalidValue as error:
        return Refused(str(error))


async def record_step(c: RedisContext, lease: Lease, step: Step) -> bool:
    """See the port."""
    stored = as_json(_StoredStep(step.name, Raw(step.result_json), step.error))
    request = {"id": id_of(lease), "token": lease.token, "number": step.number, "step": stored}
    return bool(await c.run(STEP, lease.queue, c.clock.now(), **request))


async def recorded(c: RedisContext, id: str) -> Recorded:
    """See the port."""
    queue = (await queues_of(c, [id]))[id]
    (row,) = await c.run(GET, queue, 0, ids=[local_id(queue, id)]) if queue else [None]
    steps: list[Step] = []
    signals: list[Signal] = []
    for field, value in fields(row[3]).items() if row else ():
        name = field[len(_STEP) :].decode()
        if field.startswith(_STEP):
            stored = _decode_step(value)
            steps.append(Step(number=int(name), name=stored.name, result_json=bytes(stored.result), error=stored.error))
        elif field.startswith(_SIGNAL):
            signals.append(Signal(name=name, value_json=value))
    return Recorded(sorted(steps, key=lambda step: step.number), signals)


async def signal(c: RedisContext, id: str, signal: Signal) -> Signalled:
    """See the port."""
    queue = (await queues_of(c, [id]))[id]
    if not queue:
        return "unknown"
    request = {"id": local_id(queue, id), "name": signal.name, "value": signal.value_json.decode()}
    answer: bytes = await c.run(SIGNAL, queue, c.clock.now(), **request)
    return answer.decode()  # type: ignore[return-value]  # one of these words
