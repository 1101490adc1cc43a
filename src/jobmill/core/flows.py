"""Flows: jobs that wait for other jobs, and what becomes of them when those end.

An edge leads from a job, the dependent, to a job that it waits for, its dependency. While an edge is pending, the
dependent is held by "jobs". A store sets an edge in the same step in which the dependency ends, and asks `verdict` what
that means for the dependent. No store counts: a count that is wrong once stays wrong, edges can be read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Literal, TypeAlias, get_args

from msgspec import Raw, Struct

from jobmill.core.job import Job, State
from jobmill.errors import InvalidValue

#: What becomes of a dependent when its dependency fails or is cancelled. "fail": it fails as well. "run": it runs when
#: its other dependencies have ended. The other three are BullMQ's: "now": it runs at once. "forget": the dependency
#: counts as if it had never been. "wait": it waits until the dependency is requeued and succeeds.
IfFailed: TypeAlias = Literal["fail", "run", "now", "forget", "wait"]

#: The state of an edge: pending, or how the dependency ended.
EdgeState: TypeAlias = Literal["pending", "succeeded", "failed", "cancelled"]
EDGE_STATES: tuple[EdgeState, ...] = get_args(EdgeState)

#: The holder of a job that waits for others, see `Held.by`.
BY_JOBS = "jobs"

#: A settlement or a change releases at most this number of dependents. `flush_outbox` releases the others: a single
#: statement for ten thousand dependents would block every other writer for a second.
MAX_RELEASED = 1_000

#: How many steps a job may record, and how many bytes of results together.
MAX_STEPS = 1_000
MAX_STEP_BYTES = 1024 * 1024


class After(Struct, frozen=True, gc=False):
    """One dependency of a new job: the id of a job in the same call or in the store."""

    id: str
    if_failed: IfFailed = "fail"


class Dependency(Struct, frozen=True, kw_only=True, gc=False):
    """One edge of a job, and what its dependency has returned."""

    #: The id of the dependency.
    id: str
    #: The number of the edge in its job, from 0.
    number: int
    if_failed: IfFailed = "fail"
    state: EdgeState = "pending"
    #: The first line of the error, if the dependency failed.
    error: str | None = None
    #: What the dependency has returned. None if it has not succeeded, runs again, or is not in the store any more.
    result_json: Raw | None = None


class Dependent(Struct, frozen=True, kw_only=True, gc=False):
    """A job that waits for another one, or has waited for it."""

    id: str
    if_failed: IfFailed = "fail"
    state: EdgeState = "pending"


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """One step of a handler that is done: its result, or its error if the handler continued after it."""

    number: int
    name: str
    result_json: bytes = b"null"
    error: str | None = None


class Signal(Struct, frozen=True, kw_only=True, gc=False):
    """A value that was sent to a job under a name. The first one of a name counts."""

    name: str
    value_json: bytes = b"null"


class Recorded(Struct, frozen=True):
    """What a job has recorded in earlier runs, and the signals that it has got."""

    steps: list[Step] = []
    signals: list[Signal] = []


#: What a store answers to a signal: it was stored; the job has one of this name; the job has ended; no such job exists.
Signalled: TypeAlias = Literal["stored", "exists", "final", "unknown"]


# ---------------------------------------------------------------------------------------------------- decisions


class FailLater(Struct, frozen=True):
    """The dependent must fail, with this error, when a worker claims it."""

    error: str


#: "hold": the dependent waits for more jobs. "run": it may run. FailLater: it must fail.
Verdict: TypeAlias = Literal["hold", "run"] | FailLater


def edge_state(ended: State) -> EdgeState:
    """The state of an edge whose dependency is in this state."""
    return ended if ended in EDGE_STATES else "pending"


def is_bad(state: EdgeState) -> bool:
    """Whether the dependency of an edge has ended without success."""
    return state in ("failed", "cancelled")


def refreshed(edge: Dependency, dependency: Job) -> Dependency:
    """An edge in the present state of its dependency."""
    return edge_to(edge.number, After(edge.id, edge.if_failed), dependency)


def blocks(edge: Dependency) -> bool:
    """Whether an edge keeps its job waiting."""
    return edge.state == "pending" or (is_bad(edge.state) and edge.if_failed == "wait")


def verdict(edges: Iterable[Dependency], *, others_wait: bool = False) -> Verdict:
    """What the edges of a job mean for it. It fails as soon as a dependency has failed that it cannot do without.

    A store that has set some edges gives these, and whether others block: it need not read the rest of those that were
    set before, because they have not released the job.
    """
    waits = others_wait
    runs_now = False
    for edge in edges:
        if is_bad(edge.state) and edge.if_failed == "fail":
            return FailLater(dependency_error(edge))
        waits = waits or blocks(edge)
        runs_now = runs_now or (is_bad(edge.state) and edge.if_failed == "now")
    return "hold" if waits and not runs_now else "run"


def dependency_error(edge: Dependency) -> str:
    """The error of a job that fails because of a dependency."""
    if edge.state == "cancelled":
        return f"dependency {edge.id} was cancelled"
    return f"dependency {edge.id} failed: {edge.error or 'without an error'}"


def is_dependency_error(error: str | None) -> bool:
    """Whether the error of a job that did not run is that of `dependency_error`."""
    return error is not None and error.startswith("dependency ")


def refused_requeue(edge: Dependency) -> str:
    """Why a job cannot be requeued whose dependency has not succeeded."""
    ended = "was cancelled" if edge.state == "cancelled" else "failed"
    return f"its dependency {edge.id} {ended}: requeue that job first, or retry the flow"


def first_line(error: str | None) -> str | None:
    """The first line of an error, as an edge keeps it."""
    return None if error is None else error.split("\n", 1)[0][:500]


def edge_to(number: int, after: After, dependency: Job) -> Dependency:
    """A new edge to a job in its present state."""
    state = edge_state(dependency.state)
    error = first_line(dependency.error) if state == "failed" else None
    return Dependency(id=dependency.id, number=number, if_failed=after.if_failed, state=state, error=error)


def unknown_dependency(id: str) -> InvalidValue:
    """Why a job cannot be enqueued: it waits for a job that is neither in the call nor in the store."""
    return InvalidValue("after", "the id of a job in this call or in the store", id)


def recurring_dependency(id: str) -> InvalidValue:
    """Why a job cannot be enqueued: it waits for a recurring job, or is one."""
    advice = "a recurring job never ends: let its handler enqueue the flow"
    return InvalidValue("after", "only jobs that are not recurring, on both sides", id, advice)


def live_dependency(id: str) -> InvalidValue:
    """Why a job cannot be enqueued in a transaction of the caller: it waits for a live job of others.

    The row of that job would stay locked until the caller commits, and its worker could not settle it.
    """
    expected = "in a transaction of yours, only jobs of the same call and jobs that have ended"
    return InvalidValue("after", expected, id, "enqueue after the commit, or without within=")


def circular_dependency(id: str) -> InvalidValue:
    """Why a run cannot be suspended: the job would wait for a job that waits for it."""
    return InvalidValue("after", "jobs that do not wait for this job themselves", id)


def find_cycle(waits_for: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The ids of jobs that wait for each other in a circle, in order; None if there is no circle.

    Without recursion, so that a chain may have any length.
    """
    done: set[str] = set()
    for start in waits_for:
        path: list[str] = []
        on_path: set[str] = set()
        stack = [(start, False)]
        while stack:
            id, is_left = stack.pop()
            if is_left:
                path.pop()
                on_path.remove(id)
                done.add(id)
            elif id in on_path:
                return [*path[path.index(id) :], id]
            elif id not in done and id in waits_for:
                path.append(id)
                on_path.add(id)
                stack.append((id, True))
                stack += [(other, False) for other in waits_for[id]]
    return None


def dependencies_first(ids: Collection[str], waits_for: Mapping[str, Sequence[str]]) -> list[str]:
    """These jobs, each after those of them that it waits for."""
    return [*TopologicalSorter({id: [one for one in waits_for.get(id, ()) if one in ids] for id in ids}).static_order()]
