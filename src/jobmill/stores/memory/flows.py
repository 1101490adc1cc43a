"""Jobs that wait for jobs: edges, releases, and the verbs that only flows need."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import structs

from jobmill.core.changes import Patch, Subject, held_again, reopens, resolved
from jobmill.core.flows import (
    MAX_RELEASED,
    After,
    Dependency,
    Dependent,
    EdgeState,
    blocks,
    edge_to,
    first_line,
    refreshed,
    verdict,
)
from jobmill.core.job import Job
from jobmill.core.values import FLOW_COUNT_LIMIT, FlowCount, NewJob
from jobmill.errors import InvalidValue
from jobmill.stores.common.flow_checks import FlowChecks
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.job_table import StoredJob


def check_dependencies(context: MemoryContext, new_jobs: Sequence[NewJob]) -> None:
    """Raise InvalidValue if a job waits for an unknown or a recurring job."""
    _checks(context).check_dependencies(new_jobs)


def why_not_children(context: MemoryContext, parent: Job, children: Sequence[NewJob]) -> str | None:
    """Why a suspended run cannot wait for these jobs; None if it can."""

    def waits_for(id: str) -> list[str]:
        return [edge.id for edge in context.edges.get(id, ()) if edge.state == "pending"]

    try:
        _checks(context).check_children(parent.id, children, waits_for)
    except InvalidValue as error:
        return str(error)
    return None


def _checks(context: MemoryContext) -> FlowChecks:
    def find(id: str) -> Job | None:
        stored = context.jobs.by_id.get(id)
        return None if stored is None else stored.job

    def owner(new: NewJob) -> Job | None:
        stored = context.jobs.owner(new.queue, new.name, new.unique_key)
        return None if stored is None else stored.job

    return FlowChecks(find, owner)


def add_edges(context: MemoryContext, stored: StoredJob, afters: Iterable[After]) -> None:
    """Add edges to a held job, and release it if it need not wait. All dependencies are in the store."""
    edges = context.edges.setdefault(stored.job.id, [])
    for number, after in enumerate(afters, len(edges)):
        edges.append(edge_to(number, after, context.jobs.by_id[after.id].job))
        context.edges_to.setdefault(after.id, set()).add((stored.job.id, number))
    context.jobs.write(stored, dependencies=len(edges))
    _write(context, stored, resolved(Subject.of(stored.job), verdict(edges), context.now_ms))


def is_pinned(context: MemoryContext, id: str) -> bool:
    """Whether edges lead to a job, so that it must stay."""
    return id in context.edges_to


def set_edges(context: MemoryContext, job: Job, ended: EdgeState, limit: int = MAX_RELEASED) -> int:
    """A job has ended: set the edges that lead to it and release dependents. How many, at most `limit`."""
    pending = [key for key in context.edges_to.get(job.id, ()) if _edge(context, key).state == "pending"]
    if len(pending) > limit:
        context.outbox[job.id] = ended
    else:
        context.outbox.pop(job.id, None)
    for key in pending[:limit]:
        edge = _set_edge(context, key, ended, first_line(job.error) if ended == "failed" else None)
        # From the end: what was enqueued last usually ends last.
        waits = any(map(blocks, reversed(context.edges[key[0]])))
        dependent = context.jobs.by_id[key[0]]
        looked = verdict([edge], others_wait=waits)
        _write(context, dependent, resolved(Subject.of(dependent.job), looked, context.now_ms))
    return len(pending[:limit])


def flush_outbox(context: MemoryContext, limit: int = 1_000) -> int:
    """Release dependents of jobs that had too many of them."""
    released = 0
    for id, ended in list(context.outbox.items()):
        if released < limit:
            released += set_edges(context, context.jobs.by_id[id].job, ended, limit - released)
    context.wakes = released > 0
    return released


def hold_while_pending(context: MemoryContext, stored: StoredJob) -> None:
    """A job waits again. It was seized if jobs that it waits for have not ended: then it is held again."""
    looked = verdict(context.edges[stored.job.id])
    _write(context, stored, held_again(Subject.of(stored.job), looked, context.now_ms))


def reopen_edges(context: MemoryContext, job: Job) -> None:
    """A job was requeued: those that still wait for it wait for its new end."""
    for key in context.edges_to.get(job.id, ()):
        dependent = context.jobs.by_id[key[0]]
        subject, edge = Subject.of(dependent.job), _edge(context, key)
        if edge.state != "pending" and reopens(subject, edge):
            _set_edge(context, key, "pending", None)
            _write(context, dependent, held_again(subject, verdict(context.edges[key[0]]), context.now_ms))
    context.outbox.pop(job.id, None)


def refreshed_edges(context: MemoryContext, id: str) -> tuple[Dependency, ...]:
    """The edges of a job, each in the present state of its dependency. An edge to a removed job keeps its state."""
    present = ((edge, context.jobs.by_id.get(edge.id)) for edge in context.edges.get(id, ()))
    return tuple(edge if stored is None else refreshed(edge, stored.job) for edge, stored in present)


def drop_edges(context: MemoryContext, id: str) -> None:
    """A job has left the store: its edges go, and those that lead to it keep their state."""
    for edge in context.edges.pop(id, ()):
        others = context.edges_to.get(edge.id, set())
        others.discard((id, edge.number))
        if not others:
            context.edges_to.pop(edge.id, None)
    context.edges_to.pop(id, None)
    context.outbox.pop(id, None)


def dependencies(context: MemoryContext, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
    """The edges of a job, with the results of its dependencies."""
    return [_with_result(context, edge) for edge in context.edges.get(id, [])[first : first + limit]]


def _with_result(context: MemoryContext, edge: Dependency) -> Dependency:
    stored = context.jobs.by_id.get(edge.id)
    if edge.state != "succeeded" or stored is None or stored.job.state != "succeeded":
        return edge
    return structs.replace(edge, result_json=stored.job.result_json)


def dependents(context: MemoryContext, id: str, limit: int = 100) -> list[Dependent]:
    """The jobs that wait for a job, or have waited for it."""
    found = sorted(context.edges_to.get(id, ()))[:limit]
    edges = ((job_id, _edge(context, (job_id, number))) for job_id, number in found)
    return [Dependent(id=job_id, if_failed=edge.if_failed, state=edge.state) for job_id, edge in edges]


def flows(context: MemoryContext, before: str | None = None, limit: int = 50) -> list[str]:
    """The ids of flows, in descending order."""
    ids = (id for id, jobs in context.jobs.flows.items() if jobs and (before is None or id < before))
    return heapq.nlargest(limit, ids)


def flow_counts(context: MemoryContext, ids: Sequence[str], limit: int = FLOW_COUNT_LIMIT) -> dict[str, FlowCount]:
    """How many jobs of these flows are in each state."""
    jobs = {id: context.jobs.flows[id].values() if id in context.jobs.flows else () for id in ids}
    return {id: FlowCount.of(Counter(one.job.state for one in islice(own, limit)), limit) for id, own in jobs.items()}


def edges(context: MemoryContext, ids: Sequence[str]) -> set[tuple[str, str]]:
    """Which of these jobs wait for others of them, or have waited."""
    wanted = set(ids)
    return {(id, edge.id) for id in wanted for edge in context.edges.get(id, ()) if edge.id in wanted}


def _edge(context: MemoryContext, key: tuple[str, int]) -> Dependency:
    return context.edges[key[0]][key[1]]


def _set_edge(context: MemoryContext, key: tuple[str, int], state: EdgeState, error: str | None) -> Dependency:
    edge = context.edges[key[0]][key[1]] = structs.replace(_edge(context, key), state=state, error=error)
    return edge


def _write(context: MemoryContext, stored: StoredJob, patch: Patch | None) -> None:
    if patch is not None:
        context.jobs.write(stored, **patch.fields)
        publish(context, patch.events)
