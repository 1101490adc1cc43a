"""Flows: jobs that were enqueued together and wait for each other, the newest flow first, and how far each is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from jobmill.core.job import FINAL, State
from jobmill.core.values import FLOW_COUNT_LIMIT
from jobmill.dashboard.timeline import Shape
from jobmill.dashboard.view import View

#: Flows of one page.
FLOWS_SHOWN: Final = 20


class ListedFlow(Struct, frozen=True, kw_only=True):
    """One flow."""

    id: str
    #: The name of the job with the id of the flow, which is the last one as a rule; None if there is no such job.
    name: str | None
    created_ms: int | None
    shape: Shape
    word: str
    #: How many jobs are in each state. Not `exact`: of the first jobs only.
    states: dict[State, int]
    exact: bool
    done: int
    total: int


class FlowsScreen(Struct, frozen=True, kw_only=True):
    """One page of flows. `next` is the `before` of the next page."""

    flows: list[ListedFlow]
    counted: int = FLOW_COUNT_LIMIT
    next: str | None


async def flows(view: View) -> FlowsScreen:
    """Flows, the newest first: those before the id `before`."""
    ids = await view.reads.flows(view.param("before"), FLOWS_SHOWN + 1)
    shown = ids[:FLOWS_SHOWN]
    counts, roots = await asyncio.gather(view.reads.flow_counts(shown), view.reads.get_many(shown))
    rows = []
    for id, root in zip(shown, roots, strict=True):
        states = counts[id].states
        shape, word = state_of_flow(states)
        row = ListedFlow(
            id=id,
            name=None if root is None else root.name,
            created_ms=None if root is None else root.created_ms,
            shape=shape,
            word=word,
            states=states,
            exact=counts[id].exact,
            done=done_of(states),
            total=sum(states.values()),
        )
        rows.append(row)
    return FlowsScreen(flows=rows, next=shown[-1] if len(ids) > len(shown) else None)


def done_of(states: Mapping[State, int]) -> int:
    """How many jobs have ended."""
    return sum(states.get(state, 0) for state in FINAL)


def state_of_flow(states: Mapping[State, int]) -> tuple[Shape, str]:
    """The shape of a flow and the word for it: running while a job is live, else what needs a person first."""
    if states.get("running"):
        return "running", "running"
    if states.get("waiting"):
        return "due", "waiting"
    if states.get("failed"):
        return "failed", "failed"
    return ("cancelled", "cancelled") if states.get("cancelled") else ("succeeded", "succeeded")
