"""One flow: how far it is, its jobs as a graph and as a table, and the question before it is retried or cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from msgspec import Struct
from starlette.exceptions import HTTPException

from jobmill.core.flows import first_line
from jobmill.core.job import FINAL, LIVE, Job, State
from jobmill.core.values import Filter
from jobmill.dashboard.graph import GraphNode, draw, layers
from jobmill.dashboard.screens.flows import done_of, state_of_flow
from jobmill.dashboard.selection import FLOW_ACTS, MAX_IDS, flow_filter
from jobmill.dashboard.shown import duration
from jobmill.dashboard.timeline import Shape, state_of
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue

#: A larger flow has no graph and no table of all jobs: it shows counts by name, and jobs that failed or run.
MAX_DRAWN: Final = 200
#: How many failed and how many running jobs of a large flow are listed.
LISTED: Final = 20


class FlowJob(Struct, frozen=True, kw_only=True):
    """One job of a flow."""

    id: str
    name: str
    queue: str
    shape: Shape
    #: The jobs of this flow that it waits for or has waited for.
    after: list[str]
    #: How many jobs it waits for that are not shown: those of other flows, of other tenants, or that were removed.
    after_others: int
    #: The signal that it waits for.
    waits_for: str | None
    error: str | None
    started_ms: int | None
    finished_ms: int | None


class FlowName(Struct, frozen=True, kw_only=True):
    """The jobs of one name in a flow."""

    name: str
    states: dict[State, int]
    total: int


class FlowScreen(Struct, frozen=True, kw_only=True):
    """One flow. `jobs` are all jobs in the order in which they can run; of a large flow, those that failed or run."""

    id: str
    #: Only the jobs of this tenant are shown; None: all.
    tenant: str | None
    name: str | None
    shape: Shape
    word: str
    states: dict[State, int]
    done: int
    total: int
    created_ms: int | None
    finished_ms: int | None
    names: list[FlowName]
    is_drawn: bool
    jobs: list[FlowJob]
    #: The acts that are possible now and allowed to the visitor.
    acts: list[str]

    @property
    def names_by_id(self) -> dict[str, str]:
        """The names of the jobs."""
        return {one.id: one.name for one in self.jobs}

    def graph(self, view: View) -> Markup:
        """The jobs as a picture."""
        nodes = [
            GraphNode(one.id, one.name, one.shape, _note(view, one), view.url("jobs", one.id)) for one in self.jobs
        ]
        about = {"flow": self.id} | ({} if self.tenant is None else {"tenant": self.tenant})
        urls = {one.name: view.search("all", name=one.name, **about) for one in self.names}
        pairs = ((one.id, other) for one in self.jobs for other in one.after)
        return draw(nodes, pairs, "Graph of this flow", urls)


class AskFlowScreen(Struct, frozen=True, kw_only=True):
    """What an act on a flow would do."""

    act: str
    id: str
    tenant: str | None
    name: str | None
    #: How many jobs would be changed, by state, and how many not.
    states: dict[State, int]
    changed: int
    others: dict[State, int]
    #: Whether it is done in the background, where it can be stopped.
    is_run: bool
    back: str


async def flow(view: View) -> FlowScreen:
    """One flow, with its jobs; `tenant` limits it to the jobs of one tenant."""
    id = view.request.path_params["id"]
    wanted = flow_filter(view, id, view.param("tenant"))
    names = await _counted(view, wanted)
    states = _sum(names)
    total, is_drawn = sum(states.values()), sum(states.values()) <= MAX_DRAWN
    jobs, pairs, root = await (_all_jobs(view, wanted) if is_drawn else _first_jobs(view, wanted))
    visible = {job.id: view.visible(job) for job in jobs}
    order = layers(visible, pairs)
    shape, word = state_of_flow(states)
    finished = [job.finished_ms for job in jobs if job.finished_ms is not None]
    is_done = is_drawn and done_of(states) == total
    return FlowScreen(
        id=id,
        tenant=wanted.tenant,
        name=None if root is None else root.name,
        shape=shape,
        word=word,
        states=states,
        done=done_of(states),
        total=total,
        created_ms=min((job.created_ms for job in (*jobs, *([] if root is None else [root]))), default=None),
        finished_ms=max(finished, default=None) if is_done else None,
        names=names,
        is_drawn=is_drawn,
        jobs=sorted(
            (_listed(view, job, pairs) for job in visible.values()), key=lambda one: (order[one.id], one.name, one.id)
        )
        if is_drawn
        else [_listed(view, job, pairs) for job in visible.values()],
        acts=[act for act, about in FLOW_ACTS.items() if view.can(act) and any(map(states.get, about.states))],
    )


async def ask_flow(view: View) -> AskFlowScreen:
    """Ask before a flow is retried or cancelled: `act`, `id`, `tenant`."""
    act, id = view.param("act") or "", view.param("id") or ""
    if act not in FLOW_ACTS:
        raise InvalidValue("act", "one of " + ", ".join(FLOW_ACTS), act)
    view.require(act)
    wanted = flow_filter(view, id, view.param("tenant"))
    states = _sum(await _counted(view, wanted))
    root = await _root(view, wanted)
    changed = {state: states[state] for state in FLOW_ACTS[act].states if state in states}
    return AskFlowScreen(
        act=act,
        id=id,
        tenant=wanted.tenant,
        name=None if root is None else root.name,
        states=changed,
        changed=sum(changed.values()),
        is_run=sum(changed.values()) > MAX_IDS,
        others={state: count for state, count in states.items() if state not in changed},
        back=view.local(view.param("back"), view.url("flows", id, tenant=view.param("tenant"))),
    )


def _note(view: View, job: FlowJob) -> str:
    if job.error and job.shape == "failed":
        return job.error
    if job.waits_for is not None:
        return f"waits for signal {job.waits_for}"
    if job.started_ms is None:
        return str(job.shape)
    until_ms = view.now_ms if job.finished_ms is None else job.finished_ms
    words = {"running": "running for", "succeeded": "succeeded in"}
    return f"{words[job.shape]} {duration(until_ms - job.started_ms)}" if job.shape in words else str(job.shape)


async def _counted(view: View, wanted: Filter) -> list[FlowName]:
    """The names of a flow, those with failed jobs first; there is no flow without jobs that the visitor may see."""
    states: dict[str, Counter[State]] = {}
    for one in await view.reads.count(wanted):
        states.setdefault(one.name, Counter())[one.state] += one.count
    if not states:
        raise HTTPException(404, "There is no flow with this id. Its jobs were removed, or it never existed.")
    names = [FlowName(name=name, states=dict(own), total=own.total()) for name, own in states.items()]
    return sorted(names, key=lambda one: (-one.states.get("failed", 0), one.name))


def _sum(names: Sequence[FlowName]) -> dict[State, int]:
    total: Counter[State] = Counter()
    for one in names:
        total.update(one.states)
    return {state: total[state] for state in (*LIVE, *FINAL) if total[state]}


async def _all_jobs(view: View, wanted: Filter) -> tuple[list[Job], set[tuple[str, str]], Job | None]:
    # A flow may have got more jobs since they were counted.
    jobs = (await view.reads.find(wanted, None, MAX_DRAWN)).jobs
    pairs = await view.reads.edges(sorted(job.id for job in jobs))
    return jobs, pairs, next((job for job in jobs if job.id == wanted.flow), None)


async def _first_jobs(view: View, wanted: Filter) -> tuple[list[Job], set[tuple[str, str]], Job | None]:
    pages = (
        view.reads.find(_of_state(wanted, "failed"), None, LISTED),
        view.reads.find(_of_state(wanted, "running"), None, LISTED),
    )
    failed, running, root = await asyncio.gather(*pages, _root(view, wanted))
    return [*failed.jobs, *running.jobs], set(), root


def _of_state(wanted: Filter, state: State) -> Filter:
    return Filter(flow=wanted.flow, tenant=wanted.tenant, states=(state,))


async def _root(view: View, wanted: Filter) -> Job | None:
    """The job with the id of the flow, if the visitor may see it."""
    assert wanted.flow is not None
    (root,) = await view.reads.get_many([wanted.flow])
    return None if root is None or wanted.tenant not in (None, root.tenant) else root


def _listed(view: View, job: Job, pairs: set[tuple[str, str]]) -> FlowJob:
    after = sorted(other for id, other in pairs if id == job.id)
    return FlowJob(
        id=job.id,
        name=job.name,
        queue=job.queue,
        shape=state_of(job, view.now_ms)[0],
        after=after,
        after_others=max(0, job.dependencies - len(after)),
        waits_for=job.waits_for if job.state == "waiting" else None,
        error=first_line(job.error) if job.error and job.state in ("failed", "waiting") else None,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
    )
