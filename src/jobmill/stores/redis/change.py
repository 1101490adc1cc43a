"""Changes without a lease: the core decides each of them, change.lua applies it under a guard on the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from jobmill.core.changes import (
    CHANGES_FROM,
    NO_SUCH_JOB,
    Cancel,
    Change,
    Changed,
    Patch,
    Remove,
    Requeue,
    Subject,
    decide,
    key_taken,
    not_from,
    states_for,
)
from jobmill.core.due import Held, at
from jobmill.core.flows import Dependency, dependencies_first
from jobmill.core.job import KEEP_FAILED
from jobmill.core.values import Filter
from jobmill.stores.redis.bullmq_options import as_opts
from jobmill.stores.redis.codec import bare_rule, reset_fields
from jobmill.stores.redis.context import RedisContext, as_json, by_queue
from jobmill.stores.redis.flows import TEXTS, refreshed_edges
from jobmill.stores.redis.hints import add_cancels
from jobmill.stores.redis.ids import local_id, port_id
from jobmill.stores.redis.job_request import run_request
from jobmill.stores.redis.read import FoundJob, queues_of, stored_jobs
from jobmill.stores.redis.scripts import CHANGE
from jobmill.stores.redis.search import walk
from jobmill.stores.redis.settle import keep_request

# How often the core decides again about jobs that others hold or release at the same time.
MAX_REPEATS = 5

SEVERAL_QUEUES = "several queues have a job of this id: write queue:id"


async def change(c: RedisContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
    """See the port. Up to 200 jobs of one queue are one step."""
    refused: dict[str, str] = {}
    if isinstance(which, Filter):
        subjects, more = await _matching(c, which, change, limit)
    else:
        ids = list(dict.fromkeys(which))
        subjects, more = await _by_id(c, ids[:limit], refused), len(ids) > limit
    changed: list[str] = []
    for queue, some in by_queue(subjects, lambda one: one.job.queue):
        again = await _change_some(c, queue, some, change, changed, refused)
        for _ in range(MAX_REPEATS if again else 0):
            found = await _by_id(c, again, refused)
            again = await _change_some(c, queue, found, change, changed, refused)
        refused |= dict.fromkeys(again, "others hold and release the job at the same time: try again")
    if changed and isinstance(change, Cancel):
        await add_cancels(c, changed)
    return Changed(ids=changed, refused=refused, more=more)


async def _matching(c: RedisContext, which: Filter, change: Change, limit: int) -> tuple[list[FoundJob], bool]:
    wanted = structs.replace(which, states=states_for(change, which))
    found: list[FoundJob] = []
    async for one in walk(c, wanted):
        if len(found) == limit:
            return found, True
        found.append(one)
    return found, False


async def _by_id(c: RedisContext, ids: list[str], refused: dict[str, str]) -> list[FoundJob]:
    queues = await queues_of(c, ids)
    found = await stored_jobs(c, ids, queues)
    refused |= {id: SEVERAL_QUEUES if queues[id] == "" else NO_SUCH_JOB for id in ids if id not in found}
    return list(found.values())


async def _change_some(
    c: RedisContext,
    queue: str,
    some: Sequence[FoundJob],
    change: Change,
    changed: list[str],
    refused: dict[str, str],
) -> list[str]:
    """Change jobs of one queue; the ids of jobs that something else holds by now, so that the core decides again."""
    now_ms = c.clock.now()
    edges = await _edges_of(c, queue, some) if isinstance(change, Requeue) else {}
    by_id = {found.job.id: found for found in some}
    waits_for = {id: [edge.id for edge in own] for id, own in edges.items()}
    requests: dict[str, dict[str, Any]] = {}
    for found in [by_id[id] for id in dependencies_first(by_id, waits_for)] if edges else some:
        job = found.job
        subject = structs.replace(Subject.of(job), has_our_retention=found.is_ours, edges=edges.get(job.id, ()))
        decision = decide(change, subject, now_ms, len(changed) + len(requests))
        if isinstance(decision, Patch):
            requests[job.id] = _request(found, decision, now_ms)
        else:
            refused[job.id] = decision
    if not requests:
        return []
    allowed = dict.fromkeys(CHANGES_FROM[type(change)], True)
    verb = type(change).__name__.lower()
    texts = TEXTS if isinstance(change, Cancel | Remove) else None
    answers = await c.run(
        CHANGE, queue, now_ms, verb=verb, **{"from": allowed}, changes=list(requests.values()), texts=texts
    )
    again: list[str] = []
    for id, (answer, detail) in zip(requests, answers, strict=True):
        if answer == b"done":
            changed.append(id)
        elif answer == b"again":
            again.append(id)
        else:
            refused[id] = _refusal(queue, answer, detail)
    if (lease_ms := getattr(change, "lease_ms", None)) is not None:
        c.scans.leased(queue, now_ms + lease_ms)
    return again


async def _edges_of(c: RedisContext, queue: str, some: Sequence[FoundJob]) -> dict[str, tuple[Dependency, ...]]:
    """The edges of jobs that are requeued, for those that have edges. An edge to another of these jobs is pending:
    change.lua requeues that one first, and looks again whether it has.
    """
    together = {found.job.id for found in some}
    edges = {}
    for found in some:
        if found.job.dependencies and found.is_ours:
            own = await refreshed_edges(c, queue, local_id(queue, found.job.id))
            edges[found.job.id] = tuple(
                structs.replace(edge, state="pending", error=None) if edge.id in together else edge for edge in own
            )
    return edges


def _request(found: FoundJob, patch: Patch, now_ms: int) -> dict[str, Any]:
    """A patch as change.lua takes it; what is None is left out."""
    job, fields = found.job, patch.fields
    request: dict[str, Any] = {
        "id": local_id(job.queue, job.id),
        "due": fields.get("due_ms"),
        "priority": fields.get("priority"),
        "resets": reset_fields(fields),
        "removes": patch.removes,
        "events": [(event.type, event.attempt, as_json(event.data)) for event in patch.events],
        "was": None if found.held is None else found.held.decode(),
    }
    if patch.becomes_live:
        # change.lua looks again whether the job must wait for others.
        request |= {
            "due": fields.get("held", Held(by=(), due=at(fields["due_ms"]))).due.at_ms,
            "clears": patch.clears_steps,
        }
    elif (held := fields.get("held")) is not None:
        if found.waits_for_children:
            # This is known from its children, and ends with them.
            held = structs.replace(held, by=tuple(by for by in held.by if by != "jobs"))
        delay_ms = max(0, held.due.resolve(now_ms) - now_ms)
        request |= {"held": as_json(held), "latched": bool(held.by), "delay": delay_ms}
    if patch.keep is not None:
        request["keep"] = keep_request(patch.keep, KEEP_FAILED)
    if (seize := patch.seize) is not None:
        request |= {"token": seize.token, "worker": seize.worker, "lease_ms": seize.lease_ms}
    if (rule := fields.get("recurrence")) is not None:
        opts_json = as_json(as_opts(job.options, job.priority))
        request["run"] = run_request(rule, fields["occurrence_ms"], opts_json) | {"slot": fields["occurrence_ms"]}
        if rule.pinned:
            request["run"] |= {"pinned": bare_rule(request["run"]["rule"]), "stated": as_json(rule.stated)}
    return {name: value for name, value in request.items() if value is not None}


def _refusal(queue: str, answer: bytes, detail: bytes) -> str:
    text = detail.decode(errors="replace")
    match answer:
        case b"gone":
            return NO_SUCH_JOB
        case b"state":
            return not_from(text)  # type: ignore[arg-type]  # one of the states
        case b"taken":
            return key_taken(port_id(queue, text, ours=True))
        case _:
            return text
