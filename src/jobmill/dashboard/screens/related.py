"""What concerns a job beside itself: the jobs that it waits for, those that wait for it, its steps and its signals.

The page of a job loads this when it is shown, because both together would need too many calls of the store.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from markupsafe import Markup
from msgspec import Struct

from jobmill.core.flows import Dependency, Dependent, EdgeState, IfFailed
from jobmill.core.job import Job
from jobmill.dashboard.graph import GraphNode, draw
from jobmill.dashboard.shown import HIDDEN
from jobmill.dashboard.timeline import Shape, state_of
from jobmill.dashboard.view import View

#: How many of these jobs are read, and how many at most are drawn.
MAX_RELATED: Final = 100
MAX_DRAWN: Final = 24
#: A larger result of a step is not shown.
MAX_SHOWN_BYTES: Final = 4_000


class RelatedJob(Struct, frozen=True, kw_only=True):
    """A job that the other one waits for, or that waits for it."""

    id: str
    #: None: the job was removed.
    name: str | None
    shape: Shape | None
    #: How the dependency ended, as the edge says.
    edge: EdgeState
    if_failed: IfFailed
    error: str | None


class ShownStep(Struct, frozen=True, kw_only=True):
    """A step of a handler that is done."""

    number: int
    name: str
    result: Any
    #: Its result is too large to be shown: this number of bytes.
    size: int | None
    error: str | None


class ShownSignal(Struct, frozen=True, kw_only=True):
    """A signal that was sent to the job."""

    name: str
    value: Any


class RelatedScreen(Struct, frozen=True, kw_only=True):
    """What concerns a job."""

    id: str
    name: str
    shape: Shape
    flow: str | None
    tenant: str | None
    #: The signal that it waits for now.
    waits_for: str | None
    #: How many jobs it waits for, or has waited for; `dependencies` has the first 100 that the visitor may see.
    dependency_count: int
    dependencies: list[RelatedJob]
    #: At most 100.
    dependents: list[RelatedJob]
    steps: list[ShownStep]
    signals: list[ShownSignal]

    def graph(self, view: View) -> Markup | None:
        """A picture of the job between the others; None if there are none, or too many."""
        others = [one for one in (*self.dependencies, *self.dependents) if one.name is not None]
        if not others or len({one.id for one in others}) > MAX_DRAWN:
            return None
        nodes = {self.id: GraphNode(self.id, self.name, self.shape, "this job", view.url("jobs", self.id), True)}
        for one in others:
            shape = one.shape or "due"
            nodes[one.id] = GraphNode(one.id, one.name or "", shape, shape, view.url("jobs", one.id))
        pairs = [(self.id, one.id) for one in self.dependencies] + [(one.id, self.id) for one in self.dependents]
        return draw(list(nodes.values()), pairs, "Graph of the jobs around this one", {})


async def related(view: View) -> RelatedScreen:
    """The jobs that a job waits for, those that wait for it, its steps and its signals."""
    job = await view.job(view.request.path_params["id"])
    edges, others, recorded = await asyncio.gather(
        view.reads.dependencies(job.id, MAX_RELATED) if job.dependencies else _none(),
        view.reads.dependents(job.id, MAX_RELATED),
        view.reads.recorded(job.id),
    )
    ids = sorted({one.id for one in edges} | {one.id for one in others})
    found = dict(zip(ids, await view.reads.get_many(ids), strict=True)) if ids else {}
    may_see = view.can("see_payload")
    return RelatedScreen(
        id=job.id,
        name=job.name,
        shape=state_of(job, view.now_ms)[0],
        flow=job.flow,
        tenant=job.tenant if view.access.tenants is not None else None,
        waits_for=job.waits_for if job.state == "waiting" else None,
        dependency_count=job.dependencies,
        dependencies=_shown(view, edges, found),
        dependents=_shown(view, others, found),
        steps=[
            ShownStep(
                number=step.number,
                name=step.name,
                result=None if _is_large(step.result_json) else view.payload(msgspec.json.decode(step.result_json)),
                size=len(step.result_json) if _is_large(step.result_json) else None,
                error=step.error if step.error is None or may_see else HIDDEN,
            )
            for step in recorded.steps
        ],
        signals=[
            ShownSignal(name=one.name, value=view.payload(msgspec.json.decode(one.value_json)))
            for one in recorded.signals
        ],
    )


async def _none() -> list[Dependency]:
    return []


def _is_large(json: bytes) -> bool:
    return len(json) > MAX_SHOWN_BYTES


def _shown(view: View, edges: list[Dependency] | list[Dependent], found: dict[str, Job | None]) -> list[RelatedJob]:
    """These jobs without those of other tenants. Nobody knows whose a job was that is not in the store any more."""
    shown = []
    for edge in edges:
        job, tenants = found.get(edge.id), view.access.tenants
        if tenants is not None and (job is None or job.tenant not in tenants):
            continue
        error = edge.error if isinstance(edge, Dependency) else None
        one = RelatedJob(
            id=edge.id,
            name=None if job is None else job.name,
            shape=None if job is None else state_of(job, view.now_ms)[0],
            edge=edge.state,
            if_failed=edge.if_failed,
            error=error if error is None or view.can("see_payload") else HIDDEN,
        )
        shown.append(one)
    return shown
