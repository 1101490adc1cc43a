"""Jobs that wait for jobs, as flows of BullMQ: enqueueing them, and the verbs that only flows need.

A job that waits is in `waiting-children`. Its edges, with their order, are in its field `jmg`; their states are in the
keys that BullMQ has for a parent (`:dependencies`, `:processed`, `:failed`, `:unsuccessful`), so that Node can end a
dependency as well. See lua/lib/flows.lua for several jobs that wait for one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from jobmill.core.flows import (
    MAX_RELEASED,
    Dependency,
    Dependent,
    IfFailed,
    circular_dependency,
    dependency_error,
    recurring_dependency,
    unknown_dependency,
)
from jobmill.core.job import State
from jobmill.core.values import FLOW_COUNT_LIMIT, FlowCount, NewJob, Receipt
from jobmill.errors import InvalidValue
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.context import MAX_BYTES_PER_CALL, MAX_JOBS_PER_CALL, RedisContext, as_json
from jobmill.stores.redis.hints import add_cancels
from jobmill.stores.redis.ids import RUN, check_no_queue_key, deduplication_id, local_id, port_id
from jobmill.stores.redis.job_request import job_request
from jobmill.stores.redis.lanes import heal_lanes
from jobmill.stores.redis.queues import registered_queues
from jobmill.stores.redis.read import QUEUES_PER_CALL, queues_of
from jobmill.stores.redis.scripts import DEPENDENCIES, EDGES, FLOW, FLOW_COUNTS, FLOWS, RELAY
from jobmill.stores.redis.url import slot_of

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

#: A flow of more jobs, or of more edges, is not enqueued in one step, which would keep the server busy for too long.
MAX_JOBS_PER_FLOW = 250
MAX_EDGES_PER_CALL = 1_000
#: A process has ended that has not committed a large flow, or not finished a committed one, after this time.
STAGED_MS = 60_000
COMMITTED_MS = 5_000

#: BullMQ's words for what becomes of a parent when its child fails.
POLICIES: dict[IfFailed, str] = {"fail": "fpof", "run": "idof", "now": "cpof", "forget": "rdof", "wait": "none"}
_IF_FAILED: dict[str, IfFailed] = {policy: if_failed for if_failed, policy in POLICIES.items()}

#: The errors of a job that fails because of a dependency: see flows.lua.
TEXTS = tuple(
    dependency_error(Dependency(id="%1", number=0, state=state, error="%2")) for state in ("failed", "cancelled")
)

_decode_edges = msgspec.json.Decoder(list[tuple[str, str, str, float]]).decode


class _Lost(Exception):
    """The lease of a run that was to be suspended is lost."""


class _Circular(Exception):
    """A run was to be suspended that would wait for itself."""


class _Flow(NamedTuple):
    """New jobs of one slot, what is known about the jobs that they wait for, and the queue that scripts run on."""

    queue: str
    new_jobs: list[NewJob]
    #: The key of each dependency in the store, by its id; of those in the call the position, from 1.
    references: dict[str, str | int]


async def enqueue_flow(c: RedisContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Enqueue jobs some of which wait for others. Jobs of one slot of a cluster are one flow."""
    references = await _references(c, new_jobs)
    by_slot: dict[int, list[int]] = {}
    for position, new in enumerate(new_jobs):
        check_no_queue_key(local_id(new.queue, new.id))
        by_slot.setdefault(_slot(c, new.queue), []).append(position)
    for queue in {new.queue for new in new_jobs}:
        await c.register(queue)
    receipts: dict[int, Receipt] = {}
    for positions in by_slot.values():
        own = {position: n for n, position in enumerate(positions, 1)}
        some = {id: own.get(found - 1, 0) if isinstance(found, int) else found for id, found in references.items()}
        flow = _Flow(new_jobs[positions[0]].queue, [new_jobs[position] for position in positions], some)
        receipts.update(zip(positions, await _enqueue_flow(c, flow), strict=True))
    return [receipts[position] for position in range(len(new_jobs))]


async def enqueue_children(c: RedisContext, settlement: Settlement, suspend: dict[str, Any]) -> bool:
    """Enqueue the children of a run and suspend it; False, and nothing is done, if its lease is lost."""
    queue = settlement.lease.queue
    # A child that another queue has is only waited for.
    found = await queues_of(c, [child.id for child in settlement.children], everywhere=False)
    new_jobs: list[NewJob] = []
    waits_for: list[str | int] = []
    for child in settlement.children:
        its_queue = found[child.id] or child.queue
        _check_slots(c, queue, its_queue)
        if its_queue == child.queue:
            new_jobs.append(child)
            check_no_queue_key(local_id(child.queue, child.id))
            await c.register(child.queue)
        waits_for.append(len(new_jobs) if its_queue == child.queue else _key(c, its_queue, child.id))
    references = await _references(c, new_jobs)
    for position, child in enumerate(new_jobs, 1):
        if child.recurrence is not None:
            raise recurring_dependency(child.id)
        references.setdefault(child.id, position)
    try:
        await _enqueue_flow(c, _Flow(queue, new_jobs, references), suspend | {"waits_for_jobs": waits_for})
    except _Lost:
        return False
    except _Circular:
        raise circular_dependency(settlement.lease.id) from None
    return True


def _slot(c: RedisContext, queue: str) -> int:
    return slot_of(c.key(queue)) if c.url.kind == "cluster" else 0


async def _references(c: RedisContext, new_jobs: Sequence[NewJob]) -> dict[str, str | int]:
    """Where each dependency is. InvalidValue for one that no job may wait for."""
    in_call: dict[str, int] = {}
    for number, new in enumerate(new_jobs, 1):
        in_call.setdefault(new.id, number)
    ids = dict.fromkeys(after.id for new in new_jobs for after in new.after)
    queues = await queues_of(c, [id for id in ids if id not in in_call])
    found: dict[str, str | int] = {}
    for new in new_jobs:
        if new.after and new.recurrence is not None:
            raise recurring_dependency(new.id)
        for after in new.after:
            position = in_call.get(after.id)
            queue = new_jobs[position - 1].queue if position else queues[after.id]
            if queue is None:
                raise unknown_dependency(after.id)
            if queue == "":
                raise InvalidValue("after", "an id that one queue has", after.id, "write queue:id")
            _check_slots(c, new.queue, queue)
            if position:
                found[after.id] = position
                recurs = new_jobs[position - 1].recurrence is not None
            else:
                id = local_id(queue, after.id)
                found[after.id] = f"{c.key(queue)}:{id}"
                recurs = id.startswith(RUN)
            if recurs:
                raise recurring_dependency(after.id)
    return found


def _check_slots(c: RedisContext, queue: str, other: str) -> None:
    if _slot(c, queue) != _slot(c, other):
        raise InvalidValue(
            "after",
            "jobs of queues in one slot of the cluster",
            f"{queue} and {other}",
            "use a prefix with a hash tag, such as ?prefix={bull}, for queues that flows share",
        )


async def _enqueue_flow(c: RedisContext, flow: _Flow, suspend: dict[str, Any] | None = None) -> list[Receipt]:
    """Enqueue the jobs of one slot; `suspend`: the settlement of the run that waits for all of them."""
    edges = sum(len(new.after) for new in flow.new_jobs)
    size = sum(len(new.payload_json) for new in flow.new_jobs)
    if max(len(flow.new_jobs) / MAX_JOBS_PER_FLOW, edges / MAX_EDGES_PER_CALL, size / MAX_BYTES_PER_CALL) > 1:
        return await _enqueue_in_parts(c, flow, suspend)
    now_ms = c.clock.now()
    request = {**_jobs(c, flow, flow.new_jobs, now_ms), **_checks(c, flow, suspend)}
    request["edges"] = [
        (position, _waits_for(flow, new), True) for position, new in enumerate(flow.new_jobs, 1) if new.after
    ]
    if suspend is not None:
        key = f"{c.key(flow.queue)}:{suspend['id']}"
        children = [(reference, POLICIES["run"]) for reference in suspend.pop("waits_for_jobs")]
        request |= {"suspend": suspend, "edges": [*request["edges"], (key, children, True)]}
    answer = await _run(c, flow.queue, now_ms, **request)
    return _receipts(flow.new_jobs, answer[1])


def _jobs(c: RedisContext, flow: _Flow, new_jobs: Iterable[NewJob], now_ms: int) -> dict[str, Any]:
    """New jobs as flow.lua takes them. A job that one other waits for has that in its opts, as BullMQ writes it."""
    parents: dict[str, list[dict[str, Any]]] = {}
    for new in flow.new_jobs:
        for id, if_failed in {after.id: after.if_failed for after in new.after}.items():
            flag = {} if if_failed == "wait" else {POLICIES[if_failed]: True}
            parent = {"id": local_id(new.queue, new.id), "queue": c.key(new.queue)}
            parents.setdefault(id, []).append({**flag, "parent": parent})
    requests = []
    has_lanes = False
    for new in new_jobs:
        has_lanes = has_lanes or new.lane is not None
        request = job_request(new, now_ms)
        if len(parents.get(new.id, ())) == 1:
            id, name, data, opts_json, *rest = request
            request = (id, name, data, f"{opts_json[:-1]},{as_json(parents[new.id][0])[1:]}", *rest)
        requests.append((c.key(new.queue), request, bool(new.after)))
    return {"jobs": requests, **({"lanes": True} if has_lanes else {})}


def _checks(c: RedisContext, flow: _Flow, suspend: dict[str, Any] | None) -> dict[str, Any]:
    """What flow.lua checks before it writes."""
    checks: dict[str, Any] = {
        "known": [(key, id) for id, key in flow.references.items() if isinstance(key, str)],
        "in_call": [position for position in flow.references.values() if isinstance(position, int) and position],
    }
    if suspend is not None:
        keys = [[key for key, _ in _waits_for(flow, new) if isinstance(key, str)] for new in flow.new_jobs]
        checks["children"] = [
            (c.key(new.queue), local_id(new.queue, new.id), _deduplication_id(new), own)
            for new, own in zip(flow.new_jobs, keys, strict=True)
        ]
        waits = [reference for reference in suspend["waits_for_jobs"] if isinstance(reference, str)]
        checks |= {"waits": waits, "own": suspend["id"]}
    return checks


def _deduplication_id(new: NewJob) -> str | None:
    return None if new.unique_key is None else deduplication_id(new.name, new.unique_key)


def _receipts(new_jobs: Sequence[NewJob], answers: list[Any]) -> list[Receipt]:
    return [
        Receipt(port_id(new.queue, id.decode(), bool(is_ours)), how.decode())
        for new, (how, id, is_ours) in zip(new_jobs, answers, strict=True)
    ]


async def _run(c: RedisContext, queue: str, now_ms: int, **request: Any) -> Any:
    answer, *rest = await c.run(FLOW, queue, now_ms, **request, ours=True, texts=TEXTS)
    match answer:
        case b"unknown":
            raise unknown_dependency(rest[0].decode())
        case b"recurring":
            raise recurring_dependency(rest[0].decode())
        case b"circular":
            raise _Circular
        case b"lost":
            raise _Lost
        case b"refused":
            raise InvalidValue("children", "jobs that the store can hold", rest[0].decode())
    if cancelled := rest[-1]:
        await add_cancels(c, [id.decode() for id in cancelled])
    return [answer, *rest]


# ---------------------------------------------------------------------------------------------------- large flows


async def _enqueue_in_parts(c: RedisContext, flow: _Flow, suspend: dict[str, Any] | None) -> list[Receipt]:
    """Stage all jobs, so that nobody sees them run; commit; then set the edges and free the jobs.

    A process that ends before the commit leaves jobs that `flush_outbox` removes; one that ends after it leaves the
    rest of the work to `flush_outbox`.
    """
    index = staging_index(c, flow.queue)
    key = f"{index}:{secrets.token_hex(8)}"
    await _run(c, flow.queue, c.clock.now(), **{**_checks(c, flow, suspend), "in_call": []})
    receipts: list[Receipt] = []
    for part in chunks(
        flow.new_jobs, MAX_JOBS_PER_CALL, MAX_BYTES_PER_CALL, lambda new: len(new.payload_json) + 50 * len(new.after)
    ):
        now_ms = c.clock.now()
        in_call = [n for n, new in enumerate(part, 1) if new.id in flow.references]
        request = {**_jobs(c, flow, part, now_ms), "in_call": in_call, "staging": {"key": key, "index": index}}
        answer = await _run(c, flow.queue, now_ms, **request)
        receipts += _receipts(part, answer[1])
    records = [
        (_key(c, new.queue, receipt.id), as_json(_edges(flow, receipts, _waits_for(flow, new))))
        for new, receipt in zip(flow.new_jobs, receipts, strict=True)
        if new.after and receipt.created
    ]
    for some in chunks(records, MAX_JOBS_PER_CALL, MAX_BYTES_PER_CALL, lambda record: len(record[1])):
        await _run(c, flow.queue, c.clock.now(), records=some)
    commit: dict[str, Any] = {"staging": {"key": key, "index": index, "commit": True}}
    if suspend is not None:
        waits_for = [(reference, POLICIES["run"]) for reference in suspend.pop("waits_for_jobs")]
        commit |= {"suspend": suspend, "append": as_json(_edges(flow, receipts, waits_for))}
    try:
        await _run(c, flow.queue, c.clock.now(), **commit)
    except _Lost:
        await _abort(c, flow.queue, index, key)
        raise
    await _finish(c, flow.queue, index, key)
    return receipts


def _key(c: RedisContext, queue: str, id: str) -> str:
    return f"{c.key(queue)}:{local_id(queue, id)}"


def _waits_for(flow: _Flow, new: NewJob) -> list[tuple[str | int, str]]:
    """The edges of a new job: the position or the key of each dependency, and BullMQ's word for the policy."""
    return [(flow.references[after.id], POLICIES[after.if_failed]) for after in new.after]


def _edges(
    flow: _Flow, receipts: list[Receipt], waits_for: Iterable[tuple[str | int, str]]
) -> list[tuple[str, str, str, int]]:
    """Edges as the field `jmg` has them."""
    edges = []
    for reference, policy in waits_for:
        if isinstance(reference, int):
            queue, id = flow.new_jobs[reference - 1].queue, receipts[reference - 1].id
            is_ours = local_id(queue, id) == id
        else:
            _, queue, id = reference.rsplit(":", 2)
            is_ours = id in flow.references
        edges.append((queue, local_id(queue, id), policy, int(is_ours)))
    return edges


def staging_index(c: RedisContext, queue: str) -> str:
    """The sorted set of large flows in the slot of a queue that are being enqueued."""
    return f"{relays(c, queue)}:staged"


def relays(c: RedisContext, queue: str) -> str:
    """The queue of relays in the slot of a queue: see relays.lua."""
    prefix, tag = c.url.prefix, ""
    if "{" not in prefix and "{" in queue and "}" in (rest := queue.partition("{")[2]):
        tag = f":{{{rest.partition('}')[0]}}}"
    return f"jobmill:{prefix}:relays{tag}"


async def _finish(c: RedisContext, queue: str, index: str, key: str) -> int:
    """Set the edges of a committed flow and free its jobs. Several processes may do this at once."""
    keys = [one.decode() for one in await c.client.call(key, "LRANGE", key, 0, -1)]
    count = 0
    for some in chunks(keys, MAX_JOBS_PER_CALL):
        recorded = await c.client.many(key, [("HGET", one, "jmg") for one in some])
        edges = [
            (one, (f"{c.url.prefix}:{of}:{id}", policy))
            for one, record in zip(some, recorded, strict=True)
            if record
            for of, id, policy, _ in _decode_edges(record)
        ]
        for part in chunks(edges, MAX_EDGES_PER_CALL):
            by_job: dict[str, list[tuple[str, str]]] = {}
            for one, edge in part:
                by_job.setdefault(one, []).append(edge)
            requests = [(one, own, False) for one, own in by_job.items()]
            await _run(c, queue, c.clock.now(), edges=requests)
    for some in chunks(keys, MAX_JOBS_PER_CALL):
        answer = await _run(c, queue, c.clock.now(), free=some)
        count += answer[2]
    await _run(c, queue, c.clock.now(), staging={"key": key, "index": index, "ended": True})
    return count


# ---------------------------------------------------------------------------------------------------- verbs


async def flush_outbox(c: RedisContext, limit: int = MAX_RELEASED) -> int:
    """See the port. It tells the dependents of relays, and finishes or removes large flows that a process has left."""
    released = 0
    for queue_of_relays, queue in relays_by_key(c, await registered_queues(c)).items():
        more = await c.client.call(queue_of_relays, "EXISTS", f"{queue_of_relays}:wait")
        while more and released < limit:
            request = {"limit": min(limit - released, MAX_RELEASED), "texts": TEXTS}
            told, more = await c.run_on_relays(RELAY, queue_of_relays, c.clock.now(), **request)
            released += told
        released += await finish_staged(c, queue)
    await heal_lanes(c)
    return released


def relays_by_key(c: RedisContext, queues: Iterable[str]) -> dict[str, str]:
    """The queues of relays, and for each of them a queue in its slot."""
    return {relays(c, queue): queue for queue in queues}


async def finish_staged(c: RedisContext, queue: str) -> int:
    """Finish or remove the large flows in the slot of a queue that a process has left; how many jobs were released."""
    index, released = staging_index(c, queue), 0
    for key, is_committed in (await _left_flows(c, queue)).items():
        if is_committed:
            released += await _finish(c, queue, index, key)
        else:
            await _abort(c, queue, index, key)
    return released


async def _left_flows(c: RedisContext, queue: str) -> dict[str, bool]:
    """The lists of large flows that a process may have left, and whether they are committed."""
    index = staging_index(c, queue)
    found = await c.client.call(index, "ZRANGE", index, 0, -1, "WITHSCORES")
    now_ms = c.clock.now()
    # The score is a time; that of a commit is negative.
    pairs = zip(found[::2], map(float, found[1::2]), strict=True)
    return {
        key.decode(): score < 0
        for key, score in pairs
        if abs(score) <= now_ms - (COMMITTED_MS if score < 0 else STAGED_MS)
    }


async def unfinished_flows(c: RedisContext, queue: str) -> list[str]:
    """For fsck: the large flows in the slot of a queue that were not enqueued completely."""
    return [key.rpartition(":")[2] for key in await _left_flows(c, queue)]


async def staged_jobs(c: RedisContext, queue: str) -> list[str]:
    """The keys of all jobs of large flows in the slot of a queue that are being enqueued."""
    index = staging_index(c, queue)
    keys = await c.client.call(index, "ZRANGE", index, 0, -1)
    return [one.decode() for key in keys for one in await c.client.call(key.decode(), "LRANGE", key, 0, -1)]


async def _abort(c: RedisContext, queue: str, index: str, key: str) -> None:
    """Remove a flow whose process has ended before it was enqueued completely."""
    # From now on it cannot be committed.
    if not await c.client.call(index, "ZREM", index, key):
        return
    keys = [one.decode() for one in await c.client.call(key, "LRANGE", key, 0, -1)]
    for some in chunks(keys, MAX_JOBS_PER_CALL):
        await _run(c, queue, c.clock.now(), abort=some)
    await c.client.call(key, "DEL", key)


async def dependencies(c: RedisContext, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
    """See the port. It answers for flows that Node made as well; their edges are in the order of their keys."""
    queue = (await queues_of(c, [id]))[id]
    if not queue or limit <= 0:
        return []
    return await _dependencies(c, queue, local_id(queue, id), first, limit)


async def _dependencies(
    c: RedisContext, queue: str, id: str, first: int, limit: int, *, present: bool = False
) -> list[Dependency]:
    key = f"{c.key(queue)}:{id}"
    recorded = await c.client.call(key, "HGET", key, "jmg")
    edges: list[tuple[str, str | None, bool]]
    if recorded is not None:
        edges = [
            (f"{c.url.prefix}:{of}:{child}", policy, bool(ours)) for of, child, policy, ours in _decode_edges(recorded)
        ]
    else:
        children = await c.run(DEPENDENCIES, queue, c.clock.now(), id=id, children=True, reads=True)
        edges = [(child.decode(), None, False) for child in sorted(children)]
    found: list[Dependency] = []
    for some in chunks(edges[first : first + limit], MAX_JOBS_PER_CALL):
        keys = [(child, policy) if policy else (child,) for child, policy, _ in some]
        answers = await c.run(DEPENDENCIES, queue, c.clock.now(), id=id, keys=keys, present=present, reads=True)
        for (child, _, recorded_ours), (state, policy, ours, error, *value) in zip(some, answers, strict=True):
            _, of, its_id = child.rsplit(":", 2)
            found.append(
                Dependency(
                    id=port_id(of, its_id, bool(ours) or recorded_ours),
                    number=first + len(found),
                    if_failed=_IF_FAILED[policy.decode()],
                    state=state.decode(),
                    error=error.decode(errors="replace") or None,
                    result_json=Raw(value[0]) if value and value[0] is not None else None,
                )
            )
    return found


async def refreshed_edges(c: RedisContext, queue: str, id: str) -> tuple[Dependency, ...]:
    """The edges of a job, each in the present state of its dependency. An edge to a removed job keeps its state."""
    return tuple(await _dependencies(c, queue, id, 0, 2**31, present=True))


async def dependents(c: RedisContext, id: str, limit: int = 100) -> list[Dependent]:
    """See the port."""
    queue = (await queues_of(c, [id]))[id]
    if not queue or limit <= 0:
        return []
    request = {"id": local_id(queue, id), "dependents": limit, "reads": True}
    found = []
    for key, policy, state, ours in await c.run(DEPENDENCIES, queue, c.clock.now(), **request):
        _, of, its_id = key.decode().rsplit(":", 2)
        found.append(
            Dependent(id=port_id(of, its_id, bool(ours)), if_failed=_IF_FAILED[policy.decode()], state=state.decode())
        )
    return found


async def flows(c: RedisContext, before: str | None = None, limit: int = 50) -> list[str]:
    """See the port."""
    items = [(queue, c.key(queue)) for queue in await registered_queues(c)]
    found = await c.run_in_batches(FLOWS, "queues", items, QUEUES_PER_CALL, before=before, limit=limit)
    return sorted({id.decode() for ids in found for id in ids}, reverse=True)[:limit]


async def flow_counts(c: RedisContext, ids: Sequence[str], limit: int = FLOW_COUNT_LIMIT) -> dict[str, FlowCount]:
    """See the port."""
    states: dict[str, dict[State, int]] = {id: {} for id in ids}
    flows = list(states)
    items = [(queue, c.key(queue)) for queue in await registered_queues(c)] if flows else []
    answers = await c.run_in_batches(FLOW_COUNTS, "queues", items, QUEUES_PER_CALL, flows=flows, limit=limit)
    for counted in answers:
        for position, state, count in counted:
            own, name = states[flows[position - 1]], state.decode()
            own[name] = min(own.get(name, 0) + count, limit)
    return {id: FlowCount.of(own, limit) for id, own in states.items()}


async def edges(c: RedisContext, ids: Sequence[str]) -> set[tuple[str, str]]:
    """See the port."""
    queues = await queues_of(c, ids)
    keys = {f"{c.key(queue)}:{local_id(queue, id)}": id for id, queue in queues.items() if queue}
    items = [(queue, (c.key(queue), local_id(queue, id))) for id, queue in queues.items() if queue]
    answers = await c.run_in_batches(EDGES, "jobs", items, MAX_JOBS_PER_CALL)
    pairs: set[tuple[str, str]] = set()
    for id, found in zip(keys.values(), answers, strict=True):
        if isinstance(found, bytes):
            others = [f"{c.key(of)}:{child}" for of, child, _, _ in _decode_edges(found)]
        else:
            others = [one.decode(errors="replace") for one in found]
        pairs |= {(id, keys[key]) for key in others if key in keys}
    return pairs
