"""Jobs that wait for jobs: edges, releases, and the verbs that only flows need.

A file has one writer, so a transaction sees all edges as they are: what ends a job also sets the edges that lead to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Raw, structs

from jobmill.core.changes import Patch, Subject, held_again, released_alike, reopens, resolved
from jobmill.core.due import Held
from jobmill.core.events import bare_job
from jobmill.core.flows import (
    MAX_RELEASED,
    After,
    Dependency,
    Dependent,
    EdgeState,
    IfFailed,
    Verdict,
    circular_dependency,
    edge_state,
    edge_to,
    first_line,
    live_dependency,
    recurring_dependency,
    unknown_dependency,
    verdict,
)
from jobmill.core.job import Job, State
from jobmill.core.values import FLOW_COUNT_LIMIT, FlowCount, NewJob, Receipt
from jobmill.stores.sqlite.codec import as_json, patched_columns, readable, subject_of
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish
from jobmill.stores.sqlite.lanes import change_lanes_of

#: How many pending edges one call of flush_outbox examines.
_EXAMINED = 1_000
#: Where the search for edges that should have been set begins: before all job_seqs and numbers.
FIRST = (0, -1)


class EdgeRow(NamedTuple):
    """An edge, and the job that it leads to in its present state."""

    job_seq: int
    number: int
    if_failed: IfFailed
    on_seq: int | None
    id: str
    state: State
    error: str | None

    def set(self) -> Dependency:
        """The edge in the present state of the job that it leads to."""
        state = edge_state(self.state)
        error = first_line(self.error) if state == "failed" else None
        return Dependency(id=self.id, number=self.number, if_failed=self.if_failed, state=state, error=error)


class EdgesOfJob(NamedTuple):
    """Edges for a job that is in the store and held."""

    job_seq: int
    #: The number of the first one.
    first: int
    afters: Sequence[After]


def known_edges(context: SqliteContext) -> bool:
    """Whether there are edges at all. The writer remembers it while nobody else writes."""
    if context.has_edges is None:
        context.has_edges = bool(context.row("has_edges")[0])
    return context.has_edges


def pinned(context: SqliteContext, seqs: Sequence[int]) -> frozenset[int]:
    """Of these jobs, those that edges lead to: they must stay."""
    if not seqs or not known_edges(context):
        return frozenset()
    return frozenset(seq for (seq,) in context.rows("pinned", (as_json(seqs),)))


# ---------------------------------------------------------------------------------------------------- new edges


def connect_jobs(
    context: SqliteContext, new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], *, within: bool
) -> None:
    """Give the jobs that were created their edges: to the jobs that the others became.

    `within`: in a transaction of the caller, in which no job may wait for a live job of others.
    """
    became = {new.id: receipt.id for new, receipt in zip(new_jobs, receipts, strict=True)}
    created = {receipt.id for receipt in receipts if receipt.created}
    waiting = {new.id: new.after for new, one in zip(new_jobs, receipts, strict=True) if new.after and one.created}
    if not waiting:
        return
    seqs: dict[str, int] = dict(context.rows("seqs_of", (as_json(list(waiting)),)))
    edges = [
        EdgesOfJob(seqs[id], 0, [structs.replace(after, id=became.get(after.id, after.id)) for after in afters])
        for id, afters in waiting.items()
    ]
    add_edges(context, edges, created if within else None)


def add_edges(context: SqliteContext, added: Sequence[EdgesOfJob], may_live: set[str] | None = None) -> None:
    """Add edges to held jobs, and release those that need not wait. `may_live`: only these may be live; None: all."""
    found = _dependencies(context, {after.id for one in added for after in one.afters}, may_live)
    context.has_edges = True
    rows: list[tuple[object, ...]] = []
    looked: dict[int, Verdict] = {}
    for job_seq, first, afters in added:
        edges: list[Dependency] = []
        for number, after in enumerate(afters, first):
            on_seq, dependency = found[after.id]
            edge = edge_to(number, after, dependency)
            edges.append(edge)
            rows.append((job_seq, number, on_seq, edge.if_failed, edge.state, edge.error))
        looked[job_seq] = verdict(edges)
    context.write_rows("add_edges", (), rows)
    for one in added:
        if one.first:
            looked[one.job_seq] = verdict(_stored_edges(context, one.job_seq))
    _release(context, looked)


def refuse_circle(context: SqliteContext, seq: int, id: str) -> None:
    """Raise InvalidValue if a job waits for itself, by way of other jobs."""
    if context.row("circle", (seq,)):
        raise circular_dependency(id)


def _dependencies(context: SqliteContext, ids: set[str], may_live: set[str] | None) -> dict[str, tuple[int, Job]]:
    """The jobs that new edges lead to; raises InvalidValue where there can be no edge."""
    found: dict[str, tuple[int, Job]] = {}
    for id, seq, state, error, recurring in context.rows("dependencies_by_id", (as_json(sorted(ids)),)):
        job = structs.replace(bare_job(id, "", "", state, 0), error=error)
        if recurring:
            raise recurring_dependency(id)
        if may_live is not None and not job.is_final and id not in may_live:
            raise live_dependency(id)
        found[id] = (seq, job)
    for id in sorted(ids - found.keys()):
        raise unknown_dependency(id)
    return found


# ---------------------------------------------------------------------------------------------------- jobs end


def set_edges(context: SqliteContext, succeeded: Sequence[int], others: Sequence[int]) -> None:
    """These jobs have ended: set the edges that lead to them and release dependents, at most MAX_RELEASED."""
    if not known_edges(context):
        return
    limit = MAX_RELEASED
    if succeeded and not feeding(context):
        dependents = [seq for (seq,) in context.rows("dependents_of", (as_json(succeeded), limit + 1))]
        if len(dependents) <= limit:
            _succeed(context, succeeded, set(dependents))
            succeeded, limit = (), limit - len(dependents)
    if ended := [*succeeded, *others]:
        _set_edges(context, ended, limit)


def _succeed(context: SqliteContext, succeeded: Sequence[int], dependents: set[int]) -> None:
    """Set edges without reading them, and release dependents: the core decides once for all that are held alike."""
    if not dependents:
        return
    context.write("succeed_edges", (as_json(succeeded),))
    alike: defaultdict[str | None, list[int]] = defaultdict(list)
    for seq, held in context.rows("unblocked", (as_json(list(dependents)),)):
        alike[held].append(seq)
    patches = [(seqs, released_alike(readable(held, Held), context.now_ms)) for held, seqs in alike.items()]
    _write(context, [(seqs, patch) for seqs, patch in patches if patch is not None])


def _set_edges(context: SqliteContext, seqs: Sequence[int], limit: int) -> None:
    rows = [EdgeRow(*row) for row in context.rows("ended_edges", (as_json(seqs), limit + 1))]
    if len(rows) > limit:
        first_left = rows[limit]
        left = list(seqs)[list(seqs).index(first_left.on_seq or 0) :]
        nexts = [(seq, first_left.job_seq if seq == first_left.on_seq else 0) for seq in left]
        context.write_rows("write_outbox", (), nexts)
        context.has_outbox = True
    _resolve(context, rows[:limit])


def cancel_edges(context: SqliteContext, seq: int) -> None:
    """A live job is about to be removed: for those that wait for it, it was cancelled."""
    rows = [EdgeRow(*row) for row in context.rows("ended_edges", (as_json([seq]), -1))]
    _resolve(context, [row._replace(state="cancelled") for row in rows])


def _resolve(context: SqliteContext, rows: Sequence[EdgeRow]) -> None:
    """Set edges, and release the jobs that they do not keep waiting any more."""
    if not rows:
        return
    edges: defaultdict[int, list[Dependency]] = defaultdict(list)
    for row in rows:
        edges[row.job_seq].append(row.set())
    write_edges(context, edges)
    waiting = {seq for (seq,) in context.rows("still_waiting", (as_json(list(edges)),))}
    _release(context, {seq: verdict(own, others_wait=seq in waiting) for seq, own in edges.items()})


def write_edges(context: SqliteContext, edges: Mapping[int, Iterable[Dependency]]) -> None:
    """Write the states of edges, by the seqs of their jobs. Edges that are alike share a statement."""
    alike: defaultdict[tuple[EdgeState, str | None], list[tuple[int, int]]] = defaultdict(list)
    for seq, own in edges.items():
        for edge in own:
            alike[edge.state, edge.error].append((seq, edge.number))
    for values, keys in alike.items():
        context.write_rows("set_edges", values, keys)


def _release(context: SqliteContext, looked: dict[int, Verdict]) -> None:
    seqs = [seq for seq, one in looked.items() if one != "hold"]
    if not seqs:
        return
    subjects = _subjects(context, seqs)
    patches = [([seq], resolved(one, looked[seq], context.now_ms)) for seq, one in subjects.items()]
    _write(context, [(seqs, patch) for seqs, patch in patches if patch is not None])


# ---------------------------------------------------------------------------------------------------- jobs wait again


def reopen_edges(context: SqliteContext, seqs: Sequence[int]) -> None:
    """These jobs were requeued: those that still wait for them wait for their new end."""
    if not seqs or not known_edges(context):
        return
    context.write("leave_outbox", (as_json(seqs),))
    rows = context.rows("set_edges_of", (as_json(seqs),))
    subjects = _subjects(context, {row[0] for row in rows})
    opened = [
        (seq, number)
        for seq, number, if_failed, state in rows
        if reopens(subjects[seq], Dependency(id="", number=number, if_failed=if_failed, state=state))
    ]
    context.write_rows("set_edges", ("pending", None), opened)
    _hold_again(context, {seq: subjects[seq] for seq, _ in opened})


def hold_while_pending(context: SqliteContext, seqs: Sequence[int]) -> None:
    """These jobs wait again. One was seized if jobs that it waits for have not ended: then it is held again."""
    if not seqs or not known_edges(context):
        return
    waiting = [seq for (seq,) in context.rows("still_waiting", (as_json(seqs),))]
    _hold_again(context, _subjects(context, waiting))


def _hold_again(context: SqliteContext, subjects: dict[int, Subject]) -> None:
    """Hold jobs that pending edges keep waiting, unless they must fail because of another edge."""
    patches: list[tuple[list[int], Patch]] = []
    for seq, subject in subjects.items():
        bad = [_edge(*row) for row in context.rows("bad_edges", (seq,))]
        if patch := held_again(subject, verdict(bad, others_wait=True), context.now_ms):
            patches.append(([seq], patch))
    _write(context, patches)


def refreshed_edges(context: SqliteContext, seq: int) -> tuple[Dependency, ...]:
    """The edges of a job, each in the present state of its dependency. An edge to a removed job keeps its state."""
    return tuple(
        _edge(*row) if state is None else EdgeRow(seq, row[0], row[2], None, row[1], state, error).set()
        for *row, state, error in context.rows("edges_of", (seq,))
    )


# ---------------------------------------------------------------------------------------------------- what is left


def find_unreleased(context: SqliteContext, after: tuple[int, int]) -> tuple[list[int], bool, tuple[int, int]]:
    """Jobs with edges that should have been set, among the next pending edges; whether there is an outbox; where to
    continue.

    A process of an older version does not set edges when it ends a job, and neither does a person who deletes a job
    with SQL.
    """
    rows = context.rows("search_overdue", (*after, _EXAMINED))
    found = sorted({seq for seq, _, is_overdue in rows if is_overdue})
    return found, bool(context.rows("outbox")), FIRST if len(rows) < _EXAMINED else rows[-1][:2]


def flush_outbox(context: SqliteContext, unreleased: Sequence[int], limit: int = 1_000) -> int:
    """Release dependents of jobs that had too many of them, and these jobs; how many edges were set."""
    found = look_again(context, unreleased)
    in_outbox = [seq for (seq,) in context.rows("outbox")]
    rows = [EdgeRow(*row) for row in context.rows("outbox_edges", (limit + 1,))]
    left = rows[limit:]
    first_left = left[0].on_seq if left else None
    done = in_outbox if first_left is None else in_outbox[: in_outbox.index(first_left)]
    context.write("leave_outbox", (as_json(done),))
    if left:
        context.write_rows("write_outbox", (), [(first_left, left[0].job_seq)])
    _resolve(context, rows[:limit])
    return found + len(rows[:limit])


def look_again(context: SqliteContext, seqs: Sequence[int]) -> int:
    """Set the edges of these jobs that should have been set, and release jobs that need not wait; how many edges."""
    if not seqs:
        return 0
    rows = [EdgeRow(*row) for row in context.rows("overdue_edges", (as_json(seqs),))]
    for row in rows:
        write_edges(context, {row.job_seq: [row.set()]})
    _release(context, {seq: verdict(_stored_edges(context, seq)) for seq in seqs})
    return len(rows)


# ---------------------------------------------------------------------------------------------------- read


def dependencies(context: SqliteContext, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
    """The edges of a job, with the results of its dependencies."""
    rows = context.rows("dependencies", (id, first, limit))
    return [structs.replace(_edge(*row), result_json=None if json is None else Raw(json)) for *row, json in rows]


def dependents(context: SqliteContext, id: str, limit: int = 100) -> list[Dependent]:
    """The jobs that wait for a job, or have waited for it."""
    rows = context.rows("dependents", (id, limit))
    return [Dependent(id=job_id, if_failed=if_failed, state=state) for job_id, if_failed, state in rows]


def flows(context: SqliteContext, before: str | None = None, limit: int = 50) -> list[str]:
    """The ids of flows, in descending order."""
    return [id for (id,) in context.rows("flows", (before, limit))]


def flow_counts(context: SqliteContext, ids: Sequence[str], limit: int = FLOW_COUNT_LIMIT) -> dict[str, FlowCount]:
    """How many jobs of these flows are in each state."""
    return {id: FlowCount.of(dict(context.rows("flow_count", (id, limit))), limit) for id in ids}


def edges(context: SqliteContext, ids: Sequence[str]) -> set[tuple[str, str]]:
    """Which of these jobs wait for others of them, or have waited."""
    return {(id, other) for id, other in context.rows("edges_between", (as_json(sorted(set(ids))),))}


def _edge(number: int, id: str, if_failed: IfFailed, state: EdgeState, error: str | None) -> Dependency:
    return Dependency(id=id, number=number, if_failed=if_failed, state=state, error=error)


def _stored_edges(context: SqliteContext, seq: int) -> list[Dependency]:
    return [_edge(*row[:5]) for row in context.rows("edges_of", (seq,))]


def _subjects(context: SqliteContext, seqs: Iterable[int]) -> dict[int, Subject]:
    return {row[0]: subject_of(row) for row in context.rows("subjects_of", (as_json(list(seqs)),))}


def _write(context: SqliteContext, patches: Sequence[tuple[Sequence[int], Patch]]) -> None:
    """Write what becomes of dependents: a patch for all jobs of these seqs."""
    if patches:
        context.update_jobs([(seqs, patched_columns(patch, context.now_ms)) for seqs, patch in patches])
        for seqs, patch in patches:
            if patch.fields.get("held") is not None:
                change_lanes_of(context, seqs)
        publish(context, [event for _, patch in patches for event in patch.events])
        context.wakes += 1
