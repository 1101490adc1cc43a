"""A store over six primitives: copy it, replace the primitives, run the contract. See docs/writing-a-store.md."""

import asyncio
import heapq
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core import changes, flows, values
from jobmill.core.announcing import Orders, WorkerCard
from jobmill.core.audit import AuditEntry, AuditFilter, AuditPage
from jobmill.core.cursors import read_position
from jobmill.core.events import Event, claim_events, job_event, progress_event, settlement_events
from jobmill.core.findings import Finding, StoreFacts, reachable
from jobmill.core.job import FINAL, KEEP_RUN, LIVE, LOG_LINES_KEPT, NULL, Job, Keep, State
from jobmill.core.queue_limits import QueueLimits, changed_settings
from jobmill.core.queue_settings import LaneChange, LaneSettings
from jobmill.core.stats import matches
from jobmill.core.tallies import Tally
from jobmill.core.unique_policy import Owner, Replace, when_taken
from jobmill.errors import InvalidValue
from jobmill.stores.common import whole_jobs
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.flow_checks import FlowChecks
from jobmill.stores.common.ids import new_id
from jobmill.stores.common.lane_book import LaneBook
from jobmill.stores.common.operations import Operations
from jobmill.stores.common.response import response_ms
from jobmill.stores.common.taken_keys import TakenKeys


class Database:
    """The six primitives, here over dictionaries."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._tables: dict[str, dict[str, bytes]] = defaultdict(dict)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock:
            yield

    def now(self) -> int:
        return self._clock()

    def read(self, table: str, key: str) -> bytes | None:
        return self._tables[table].get(key)

    def read_all(self, table: str) -> list[bytes]:
        return list(self._tables[table].values())

    def write(self, table: str, key: str, record: bytes) -> None:
        self._tables[table][key] = record

    def delete(self, table: str, key: str) -> None:
        del self._tables[table][key]


class JobRecord(Struct):
    """A job, and what the store knows about it that a Job does not show. `gone`: edges to jobs that were removed."""

    seq: int
    job: Job
    payload: str = ""
    token: str | None = None
    lease_until_ms: int = 0
    keep: Keep = Keep()
    lines: list[values.LogLine] = []
    edges: list[flows.Dependency] = []
    gone: list[int] = []
    steps: list[flows.Step] = []
    signals: list[flows.Signal] = []


Jobs = dict[str, JobRecord]


def load(record: bytes) -> JobRecord:
    stored = msgspec.json.decode(record, type=JobRecord)
    stored.job = structs.replace(stored.job, payload_json=Raw(stored.payload.encode()))
    return stored


def save(db: Database, stored: JobRecord, **fields: object) -> None:
    stored.job = structs.replace(stored.job, **fields)
    payload = bytes(stored.job.payload_json).decode()
    record = structs.replace(stored, job=structs.replace(stored.job, payload_json=NULL), payload=payload)
    db.write("jobs", stored.job.id, msgspec.json.encode(record))


def all_jobs(db: Database) -> Jobs:
    return {stored.job.id: stored for stored in map(load, db.read_all("jobs"))}


def owner_of(jobs: Jobs, queue: str, name: str, unique_key: str | None) -> JobRecord | None:
    """The live job that has a unique key."""
    if unique_key is None:
        return None
    live = [stored for stored in jobs.values() if stored.job.state in LIVE]
    key = (queue, name, unique_key)
    return next((one for one in live if (one.job.queue, one.job.name, one.job.unique_key) == key), None)


class QueueRecord(Struct):
    """A queue: its settings, the window of its rate limit, and its feed."""

    queue: str
    limits: QueueLimits = QueueLimits()
    last_event: int = 0
    feed: list[Event] = []


def load_queue(db: Database, queue: str) -> QueueRecord:
    record = db.read("queues", queue)
    return QueueRecord(queue) if record is None else msgspec.json.decode(record, type=QueueRecord)


def save_queue(db: Database, record: QueueRecord) -> None:
    db.write("queues", record.queue, msgspec.json.encode(record))


def configure(db: Database, now_ms: int, queue: str, change: values.QueueChange) -> values.QueueSettings:
    record = load_queue(db, queue)
    record.limits = structs.replace(record.limits, settings=changed_settings(record.limits.settings, change))
    save_queue(db, record)
    return record.limits.settings


def settings(db: Database, now_ms: int, queues: Sequence[str] | None = None) -> dict[str, values.QueueSettings]:
    if queues is None:
        queues = [msgspec.json.decode(record, type=QueueRecord).queue for record in db.read_all("queues")]
    return {queue: load_queue(db, queue).limits.settings.at(now_ms) for queue in queues}


def publish(db: Database, now_ms: int, events: Sequence[Event]) -> None:
    for event in events:
        record = load_queue(db, event.queue)
        if record.limits.settings.feed:
            record.last_event += 1
            record.feed.append(structs.replace(event, id=str(record.last_event)))
            record.feed = record.feed[-record.limits.settings.events_max_len :]
            save_queue(db, record)


def events(db: Database, now_ms: int, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
    seen = 0 if after is None else read_position(after, "after", after)
    return [event for event in load_queue(db, queue).feed if int(event.id or 0) > seen][:limit]


def enqueue(db: Database, now_ms: int, new_jobs: Sequence[values.NewJob]) -> list[values.Receipt]:
    jobs = all_jobs(db)
    checks(jobs).check_dependencies(new_jobs)
    return enqueue_all(db, now_ms, jobs, new_jobs)


def enqueue_all(db: Database, now_ms: int, jobs: Jobs, new_jobs: Sequence[values.NewJob]) -> list[values.Receipt]:
    last_seq = max((stored.seq for stored in jobs.values()), default=0)
    receipts = [enqueue_one(db, now_ms, jobs, new, seq) for seq, new in enumerate(new_jobs, last_seq + 1)]
    became = {new.id: receipt.id for new, receipt in zip(new_jobs, receipts, strict=True)}
    for new, receipt in zip(new_jobs, receipts, strict=True):
        if new.after and receipt.created:
            afters = [structs.replace(after, id=became.get(after.id, after.id)) for after in new.after]
            connect(db, now_ms, jobs, jobs[new.id], afters)
    return receipts


def enqueue_one(db: Database, now_ms: int, jobs: Jobs, new: values.NewJob, seq: int) -> values.Receipt:
    if new.id in jobs:
        return values.Receipt(new.id, "exists")
    if new.unique_key is not None and (receipt := taken(db, now_ms, jobs, new)) is not None:
        return receipt
    stored = jobs[new.id] = JobRecord(seq, whole_jobs.new_job(new, now_ms))
    save(db, stored)
    publish(db, now_ms, [job_event(stored.job, "enqueued", now_ms)])
    return values.Receipt(new.id, "created")


def taken(db: Database, now_ms: int, jobs: Jobs, new: values.NewJob) -> values.Receipt | None:
    """The receipt of a new job whose unique key is taken; None if the job may be stored."""
    if (owner := owner_of(jobs, new.queue, new.name, new.unique_key)) is not None:
        rule = owner.job.recurrence
        if new.recurrence is not None and rule is not None:
            save(db, owner, **whole_jobs.updated_fields(new, owner.job, now_ms))
            return values.Receipt(owner.job.id, "pinned" if rule.pinned else "updated")
        decided = when_taken(new.policy, new.due, Owner.of(owner.job), now_ms)
        if decided == "duplicate":
            return values.Receipt(owner.job.id, "duplicate")
        if isinstance(decided, Replace):
            save(db, owner, **whole_jobs.replaced_fields(new, decided))
            return values.Receipt(owner.job.id, "updated")
        if decided == "cancel":
            change_one(db, now_ms, jobs, owner.job.id, changes.Cancel(), 0)
        else:
            save(db, owner, unique_key=None)
    with taken_keys(db) as keys:
        holder = keys.take(new, now_ms)
    return None if holder is None else values.Receipt(holder, "duplicate")


@contextmanager
def taken_keys(db: Database) -> Iterator[TakenKeys]:
    record = db.read("keys", "all")
    keys = TakenKeys() if record is None else msgspec.json.decode(record, type=TakenKeys)
    yield keys
    db.write("keys", "all", msgspec.json.encode(keys))


def held(jobs: Jobs, lease: values.Lease, now_ms: int) -> JobRecord | None:
    """The guard: the job, while the token of this lease matches and the lease has not ended."""
    stored = jobs.get(lease.id)
    return stored if stored and stored.token == lease.token and stored.lease_until_ms > now_ms else None


def extend(db: Database, now_ms: int, leases: Sequence[values.Lease], for_ms: int) -> list[str]:
    jobs, lost = all_jobs(db), []
    for lease in leases:
        if (stored := held(jobs, lease, now_ms)) is None:
            lost.append(lease.id)
        else:
            stored.lease_until_ms = now_ms + for_ms
            save(db, stored)
    return lost


def report(db: Database, now_ms: int, reports: Sequence[values.Report]) -> list[str]:
    jobs, lost = all_jobs(db), []
    for one in reports:
        if (stored := held(jobs, one.lease, now_ms)) is None:
            lost.append(one.lease.id)
            continue
        lines = [*stored.lines, *(values.LogLine(now_ms, text, one.attempt, one.level) for text in one.lines)]
        stored.lines = lines[-LOG_LINES_KEPT:]
        save(db, stored)
        if one.progress is not None:
            save(db, stored, progress=one.progress, updated_ms=now_ms)
            publish(db, now_ms, [progress_event(stored.job, one.progress, now_ms)])
    return lost


def settle(db: Database, now_ms: int, jobs: Jobs, done: values.Settlement) -> values.Settled:
    if (stored := held(jobs, done.lease, now_ms)) is None:
        return "lost"
    try:
        checks(jobs).check_children(stored.job.id, done.children, lambda one: waits_for(jobs, one))
    except InvalidValue as error:
        return values.Refused(str(error))
    publish(db, now_ms, settlement_events(done, now_ms))
    stored.token, stored.keep = None, done.keep or Keep()
    run = whole_jobs.finished_run(stored.job, done, now_ms)
    save(db, stored, **whole_jobs.settled_fields(stored.job, done, now_ms, strict=is_strict(db, stored.job)))
    if done.runs is not None and stored.job.state == "waiting":
        db.write("runs", run.id, msgspec.json.encode(run))
    if done.outcome == "suspended":
        suspend(db, now_ms, jobs, stored, done)
    elif stored.job.state == "waiting":
        subject = changes.Subject.of(stored.job)
        apply(db, now_ms, stored, changes.held_again(subject, flows.verdict(stored.edges), now_ms))
    elif any(edges_to(jobs, stored.job.id)):
        end(db, now_ms, jobs, stored.job)
    elif stored.keep.at_once:
        remove(db, now_ms, jobs, stored.job)
    return "done"


def remove(db: Database, now_ms: int, jobs: Jobs, removed: Job) -> None:
    delete(db, jobs, removed.id)
    publish(db, now_ms, [job_event(removed, "removed", now_ms)])


def delete(db: Database, jobs: Jobs, id: str) -> None:
    for stored, number in edges_to(jobs, id):
        stored.gone.append(number)
        save(db, stored)
    del jobs[id]
    db.delete("jobs", id)


def exchange(
    db: Database, now_ms: int, settlements: Sequence[values.Settlement], claim: values.Claim | None
) -> values.Exchanged:
    jobs = all_jobs(db)
    settled = [settle(db, now_ms, jobs, done) for done in settlements]
    fill_lanes(db, now_ms, jobs)
    claimed: list[values.Claimed | values.Broken] = []
    dues: list[int | None] = []
    if claim is not None:
        rooms = dict(claim.names)
        excluded = {done.lease.id for done in settlements}
        for queue in claim.queues:
            own = [stored for stored in jobs.values() if stored.job.queue == queue]
            found = claimable(db, now_ms, queue, own, rooms, excluded, claim.n - len(claimed))
            claimed += [lease_one(db, now_ms, stored, claim) for stored in found]
            dues.append(next_due(db, now_ms, queue, own, claim, counts_leases=not claimed))
    next_due_ms = min((due_ms for due_ms in dues if due_ms is not None), default=None)
    has_outbox = any(pending_to(jobs, done.lease.id) for done in settlements if done.state in FINAL)
    return values.Exchanged(
        settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=now_ms, has_outbox=has_outbox
    )


def claimable(
    db: Database, now_ms: int, queue: str, own: list[JobRecord], rooms: dict[str, int], excluded: set[str], most: int
) -> list[JobRecord]:
    """Up to `most` jobs of one queue in claim order, within all limits. Counts them against the limits."""
    record = load_queue(db, queue)
    running = [stored for stored in own if stored.job.state == "running"]
    ended = [stored for stored in running if stored.lease_until_ms <= now_ms]
    due = [stored for stored in own if stored.job.state == "waiting" and stored.job.due_ms <= now_ms]
    room = record.limits.room(len(running) - len(ended), now_ms)
    found: list[JobRecord] = []
    for stored in sorted(due + ended, key=lambda one: (one.job.priority, one.job.due_ms, one.seq)):
        fits = len(found) < (most if room is None else min(most, room)) and rooms.get(stored.job.name, 0) > 0
        if fits and stored.job.id not in excluded:
            rooms[stored.job.name] -= 1
            found.append(stored)
    if record.limits.counts_claims:
        record.limits = record.limits.after_claims(len(found), now_ms)
        save_queue(db, record)
    return found


def lease_one(db: Database, now_ms: int, stored: JobRecord, claim: values.Claim) -> values.Claimed | values.Broken:
    recovered_from = stored.job.worker or "" if stored.job.state == "running" else None
    uncounted = whole_jobs.is_uncounted(stored.job, stored.token)
    stored.token, stored.lease_until_ms = claim.token, now_ms + claim.lease_ms
    save(db, stored, **whole_jobs.claimed_fields(stored.job, claim, now_ms, uncounted=uncounted))
    publish(db, now_ms, claim_events(stored.job, now_ms, lease_lost=recovered_from is not None))
    job, until_ms = stored.job, stored.lease_until_ms
    lease = values.Lease(job.id, claim.token, job.queue, job.name, until_ms, lane=job.lane)
    try:
        msgspec.json.decode(stored.job.payload_json)
    except msgspec.DecodeError as error:
        return values.Broken(lease, f"payload: {error}")
    return values.Claimed(stored.job, lease, recovered_from, uncounted)


def next_due(
    db: Database, now_ms: int, queue: str, own: list[JobRecord], claim: values.Claim, *, counts_leases: bool
) -> int | None:
    """When a job of this queue that waits now, or runs, may be claimed."""
    mine = [stored for stored in own if stored.job.name in claim.names]
    dues = [stored.job.due_ms for stored in mine if stored.job.state == "waiting"]
    held = [stored for stored in mine if stored.job.state == "running" and stored.lease_until_ms > now_ms]
    ends = [stored.lease_until_ms for stored in held] if counts_leases else []
    running = sum(stored.job.state == "running" for stored in own)
    with lane_book(db) as book:
        of_lanes = book.next_ms(queue, [stored.job for stored in own], now_ms)
    dues += [] if of_lanes is None else [of_lanes]
    limits, first = load_queue(db, queue).limits, min(dues, default=None)
    return whole_jobs.claimable_ms(limits, first, running, now_ms, min(ends, default=None))


def change(
    db: Database, now_ms: int, which: Sequence[str] | values.Filter, change: changes.Change, limit: int = 1_000
) -> changes.Changed:
    jobs, changed, refused = all_jobs(db), list[str](), dict[str, str]()
    if isinstance(which, values.Filter):
        which = structs.replace(which, states=changes.states_for(change, which))
        ids = [id for id, stored in jobs.items() if matches(stored.job, which)]
    else:
        ids = list(dict.fromkeys(which))
    for id in ids[:limit]:
        refusal = change_one(db, now_ms, jobs, id, change, len(changed))
        if refusal is None:
            changed.append(id)
        else:
            refused[id] = refusal
    return changes.Changed(ids=changed, refused=refused, more=len(ids) > limit)


def change_one(db: Database, now_ms: int, jobs: Jobs, id: str, change: changes.Change, index: int) -> str | None:
    """Apply what the core decides about one job, or return why it is refused."""
    if (stored := jobs.get(id)) is None:
        return changes.NO_SUCH_JOB
    subject = changes.Subject.of(stored.job)
    if isinstance(change, changes.Requeue):
        edges = enumerate(stored.edges)
        present = [edge if n in stored.gone else flows.refreshed(edge, jobs[edge.id].job) for n, edge in edges]
        subject = structs.replace(subject, edges=tuple(present))
    patch = changes.decide(change, subject, now_ms, index)
    if isinstance(patch, str):
        return patch
    owner = owner_of(jobs, stored.job.queue, stored.job.name, stored.job.unique_key)
    if patch.becomes_live and owner is not None:
        return changes.key_taken(owner.job.id)
    stored.edges = list(subject.edges) or stored.edges
    if any(edges_to(jobs, id)):
        patch = tell_dependents(db, now_ms, jobs, stored.job, change, patch)
    if patch.clears_steps:
        stored.steps, stored.signals = [], []
    stored.token = None if patch.ends_lease else stored.token
    stored.keep = patch.keep or stored.keep
    save(db, stored, **patch.fields)
    if patch.seize is not None:
        stored.token, stored.lease_until_ms = patch.seize.token, now_ms + patch.seize.lease_ms
        save(db, stored, claims=stored.job.claims + 1)
    if patch.removes:
        delete(db, jobs, id)
    if isinstance(change, changes.Cancel | changes.Remove):
        with taken_keys(db) as keys:
            keys.free([id])
    publish(db, now_ms, patch.events)
    return None


def checks(jobs: Jobs) -> FlowChecks:
    """Whether jobs may wait for others."""

    def find(id: str) -> Job | None:
        return jobs[id].job if id in jobs else None

    def owner(new: values.NewJob) -> Job | None:
        found = owner_of(jobs, new.queue, new.name, new.unique_key)
        return None if found is None else found.job

    return FlowChecks(find, owner)


def waits_for(jobs: Jobs, id: str) -> list[str]:
    return [edge.id for edge in jobs[id].edges if edge.state == "pending"] if id in jobs else []


def edges_to(jobs: Jobs, id: str) -> Iterator[tuple[JobRecord, int]]:
    """The edges that lead to a job: their jobs and numbers."""
    for stored in jobs.values():
        yield from ((stored, n) for n, edge in enumerate(stored.edges) if edge.id == id and n not in stored.gone)


def pending_to(jobs: Jobs, id: str) -> list[tuple[JobRecord, int]]:
    return [(stored, n) for stored, n in edges_to(jobs, id) if stored.edges[n].state == "pending"]


def apply(db: Database, now_ms: int, stored: JobRecord, patch: changes.Patch | str | None) -> None:
    """Write what becomes of a job that waits for others, and its edges."""
    fields, events = (patch.fields, patch.events) if isinstance(patch, changes.Patch) else ({}, ())
    save(db, stored, **fields)
    publish(db, now_ms, events)


def connect(db: Database, now_ms: int, jobs: Jobs, stored: JobRecord, afters: Sequence[flows.After]) -> None:
    """Add edges to a held job, and release it if it need not wait."""
    for number, after in enumerate(afters, len(stored.edges)):
        stored.edges.append(flows.edge_to(number, after, jobs[after.id].job))
    save(db, stored, dependencies=len(stored.edges))
    subject = changes.Subject.of(stored.job)
    apply(db, now_ms, stored, changes.resolved(subject, flows.verdict(stored.edges), now_ms))


def end(
    db: Database,
    now_ms: int,
    jobs: Jobs,
    ended: Job,
    state: State | None = None,
    limit: int = flows.MAX_RELEASED,
) -> int:
    """Set the edges that lead to a job that has ended, at most `limit`, and release jobs; how many edges."""
    pending = pending_to(jobs, ended.id)[:limit]
    for stored, number in pending:
        ended = structs.replace(ended, state=state or ended.state)
        edge = stored.edges[number] = flows.refreshed(stored.edges[number], ended)
        others_wait = any(map(flows.blocks, reversed(stored.edges)))
        looked = flows.verdict([edge], others_wait=others_wait)
        apply(db, now_ms, stored, changes.resolved(changes.Subject.of(stored.job), looked, now_ms))
    return len(pending)


def tell_dependents(
    db: Database, now_ms: int, jobs: Jobs, job: Job, change: changes.Change, patch: changes.Patch
) -> changes.Patch:
    """A job that others wait for is changed. The patch to write: it stays, even if it would be removed at once."""
    if isinstance(change, changes.Cancel):
        end(db, now_ms, jobs, job, "cancelled")
        return changes.kept(patch)
    if isinstance(change, changes.Remove) and job.state in LIVE:
        end(db, now_ms, jobs, job, "cancelled", limit=sys.maxsize)
    elif patch.becomes_live:
        reopen(db, now_ms, jobs, job.id)
    return patch


def reopen(db: Database, now_ms: int, jobs: Jobs, id: str) -> None:
    """A job was requeued: those that still wait for it wait for its new end."""
    for stored, number in edges_to(jobs, id):
        subject, edge = changes.Subject.of(stored.job), stored.edges[number]
        if edge.state != "pending" and changes.reopens(subject, edge):
            stored.edges[number] = structs.replace(edge, state="pending", error=None)
            apply(db, now_ms, stored, changes.held_again(subject, flows.verdict(stored.edges), now_ms))


def flush_outbox(db: Database, now_ms: int, limit: int = 1_000) -> int:
    jobs = all_jobs(db)
    final = [stored.job for stored in jobs.values() if stored.job.state in FINAL]
    released = 0
    for job in final:
        released += end(db, now_ms, jobs, job, limit=limit - released)
    return released


def dependencies(db: Database, now_ms: int, id: str, first: int = 0, limit: int = 1_000) -> list[flows.Dependency]:
    jobs = all_jobs(db)
    if id not in jobs:
        return []
    edges = jobs[id].edges[first : first + limit]
    return [edge if edge.number in jobs[id].gone else with_result(edge, jobs[edge.id].job) for edge in edges]


def with_result(edge: flows.Dependency, job: Job) -> flows.Dependency:
    is_known = edge.state == job.state == "succeeded"
    return structs.replace(edge, result_json=job.result_json) if is_known else edge


def dependents(db: Database, now_ms: int, id: str, limit: int = 100) -> list[flows.Dependent]:
    edges = [(stored.job.id, stored.edges[number]) for stored, number in edges_to(all_jobs(db), id)]
    return [flows.Dependent(id=one, if_failed=edge.if_failed, state=edge.state) for one, edge in edges[:limit]]


def list_flows(db: Database, now_ms: int, before: str | None = None, limit: int = 50) -> list[str]:
    ids = {stored.job.flow for stored in all_jobs(db).values() if stored.job.flow is not None}
    return heapq.nlargest(limit, (id for id in ids if before is None or id < before))


def flow_counts(
    db: Database, now_ms: int, ids: Sequence[str], limit: int = values.FLOW_COUNT_LIMIT
) -> dict[str, values.FlowCount]:
    counts: dict[str, Counter[State]] = {id: Counter() for id in ids}
    for stored in all_jobs(db).values():
        if stored.job.flow in counts and counts[stored.job.flow].total() < limit:
            counts[stored.job.flow][stored.job.state] += 1
    return {id: values.FlowCount.of(dict(states), limit) for id, states in counts.items()}


def edges(db: Database, now_ms: int, ids: Sequence[str]) -> set[tuple[str, str]]:
    jobs = all_jobs(db)
    return {(id, edge.id) for id in ids if id in jobs for edge in jobs[id].edges if edge.id in ids}


def suspend(db: Database, now_ms: int, jobs: Jobs, stored: JobRecord, done: values.Settlement) -> None:
    """Enqueue the children of a suspended run and hold the job until they have ended; or wait for a signal."""
    if done.children:
        receipts = enqueue_all(db, now_ms, jobs, done.children)
        hold = changes.Hold(by=flows.BY_JOBS)
        apply(db, now_ms, stored, changes.decide(hold, changes.Subject.of(stored.job), now_ms))
        connect(db, now_ms, jobs, stored, [flows.After(receipt.id, "run") for receipt in receipts])
    if done.waits_for in [signal.name for signal in stored.signals]:
        make_due(db, now_ms, stored)


def make_due(db: Database, now_ms: int, stored: JobRecord) -> None:
    now = changes.Reschedule(values.NOW)
    apply(db, now_ms, stored, changes.decide(now, changes.Subject.of(stored.job), now_ms))


def record_step(db: Database, now_ms: int, lease: values.Lease, step: flows.Step) -> bool:
    if (stored := held(all_jobs(db), lease, now_ms)) is None:
        return False
    if step.number not in [one.number for one in stored.steps]:
        stored.steps = sorted([*stored.steps, step], key=lambda one: one.number)
        save(db, stored)
    return True


def recorded(db: Database, now_ms: int, id: str) -> flows.Recorded:
    stored = all_jobs(db).get(id)
    return flows.Recorded() if stored is None else flows.Recorded(stored.steps, stored.signals)


def signal(db: Database, now_ms: int, id: str, signal: flows.Signal) -> flows.Signalled:
    if (stored := all_jobs(db).get(id)) is None:
        return "unknown"
    if stored.job.state in FINAL:
        return "final"
    if signal.name in [one.name for one in stored.signals]:
        return "exists"
    stored.signals.append(signal)
    save(db, stored)
    if stored.job.state == "waiting" and stored.job.waits_for == signal.name:
        make_due(db, now_ms, stored)
    return "stored"


def get(db: Database, now_ms: int, ids: Sequence[str]) -> list[Job | None]:
    records = [db.read("jobs", id) for id in ids]
    return [None if record is None else load(record).job for record in records]


def lease_ends(db: Database, now_ms: int, ids: Sequence[str]) -> list[int | None]:
    found = [None if record is None else load(record) for record in [db.read("jobs", id) for id in ids]]
    return [one.lease_until_ms if one and one.job.state == "running" else None for one in found]


def matching(db: Database, filter: values.Filter) -> list[tuple[int, Job]]:
    return [(stored.seq, stored.job) for stored in all_jobs(db).values() if matches(stored.job, filter)]


def find(db: Database, now_ms: int, filter: values.Filter, cursor: str | None = None, limit: int = 100) -> values.Page:
    return whole_jobs.page(matching(db, filter), filter, cursor, limit)


def count(db: Database, now_ms: int, filter: values.Filter) -> list[values.Count]:
    return whole_jobs.counts(one for _, one in matching(db, filter))


def count_up_to(db: Database, now_ms: int, filter: values.Filter, limit: int) -> values.CountUpTo:
    found = len(matching(db, filter))
    return values.CountUpTo(min(limit, found), found < limit)


def depths(
    db: Database, now_ms: int, queues: Sequence[str] | None = None, limit: int = values.DEPTH_LIMIT
) -> list[values.Depth]:
    jobs = (stored.job for stored in all_jobs(db).values())
    limits = {queue: load_queue(db, queue).limits for queue in settings(db, now_ms)}
    return whole_jobs.depths(jobs, queues, limits, limit, now_ms)


def stats(db: Database, now_ms: int, queue: str | None = None, name: str | None = None) -> list[values.Stats]:
    wanted = values.Filter(queue=queue, name=name)
    jobs = [one for _, one in matching(db, wanted)]
    return whole_jobs.statistics(jobs + [run for run in all_runs(db) if matches(run, wanted)], now_ms)


def all_runs(db: Database) -> list[Job]:
    return [msgspec.json.decode(record, type=Job) for record in db.read_all("runs")]


def logs(db: Database, now_ms: int, id: str, limit: int = 1_000) -> list[values.LogLine]:
    record = db.read("jobs", id)
    return [] if record is None else load(record).lines[-limit:]


def purge(db: Database, now_ms: int, limit: int = 1_000) -> values.Purged:
    jobs = all_jobs(db)
    for id in whole_jobs.expired(((0, run, KEEP_RUN) for run in all_runs(db)), now_ms):
        db.delete("runs", id)
    with operations(db) as state, taken_keys(db) as keys:
        state.purge(now_ms)
        keys.purge(now_ms)
    expired = whole_jobs.expired(((stored.seq, stored.job, stored.keep) for stored in jobs.values()), now_ms)
    pinned = {edge.id for stored in jobs.values() for edge in stored.edges}
    ids = [id for id in expired if id not in pinned]
    frees = any(jobs[id].edges for id in ids[:limit])
    for id in ids[:limit]:
        remove(db, now_ms, jobs, jobs[id].job)
    return values.Purged(min(len(ids), limit), more=frees or len(ids) > limit)


@contextmanager
def operations(db: Database) -> Iterator[Operations]:
    record = db.read("operations", "all")
    state = Operations() if record is None else msgspec.json.decode(record, type=Operations)
    yield state
    db.write("operations", "all", msgspec.json.encode(state))


def announce(db: Database, now_ms: int, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
    with operations(db) as state:
        return state.announce(now_ms, card, tallies, leaves)


def workers(db: Database, now_ms: int) -> list[WorkerCard]:
    with operations(db) as state:
        return state.workers(now_ms)


def order_stop(db: Database, now_ms: int, ids: Sequence[str]) -> list[str]:
    with operations(db) as state:
        return state.order_stop(now_ms, ids)


def tallies(
    db: Database,
    now_ms: int,
    since_ms: int,
    until_ms: int,
    step_ms: int,
    queue: str | None = None,
    name: str | None = None,
) -> list[Tally]:
    with operations(db) as state:
        return state.series(now_ms, since_ms, until_ms, step_ms, queue, name)


def audit(db: Database, now_ms: int, entries: Sequence[AuditEntry]) -> None:
    with operations(db) as state:
        state.audit(now_ms, entries)


def audit_log(db: Database, now_ms: int, filter: AuditFilter, cursor: str | None = None, limit: int = 100) -> AuditPage:
    with operations(db) as state:
        return state.audit_log(now_ms, filter, cursor, limit)


@contextmanager
def lane_book(db: Database) -> Iterator[LaneBook]:
    record = db.read("lanes", "all")
    book = LaneBook() if record is None else msgspec.json.decode(record, type=LaneBook)
    yield book
    db.write("lanes", "all", msgspec.json.encode(book))


def fill_lanes(db: Database, now_ms: int, jobs: Jobs) -> None:
    """Give free slots of lanes to their next jobs."""
    if any(stored.job.lane is not None and stored.job.state in LIVE for stored in jobs.values()):
        rules = {queue: one.lanes for queue, one in settings(db, now_ms).items()}
        with lane_book(db) as book:
            fields = book.fill(((stored.seq, stored.job) for stored in jobs.values()), rules, now_ms)
        for id, new_fields in fields.items():
            save(db, jobs[id], **new_fields)


def is_strict(db: Database, job: Job) -> bool:
    if job.lane is None:
        return False
    with lane_book(db) as book:
        return book.limits(job.queue, job.lane, load_queue(db, job.queue).limits.settings.lanes).strict


def configure_lane(db: Database, now_ms: int, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    with lane_book(db) as book:
        return book.configure(queue, lane, change)


def lanes(
    db: Database,
    now_ms: int,
    queue: str,
    names: Sequence[str] | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[values.Lane]:
    jobs = matching(db, values.Filter(queue=queue))
    with lane_book(db) as book:
        return book.lanes(queue, jobs, names, after, limit, now_ms)


#: How often a sleeping worker looks for jobs of other processes.
POLL_SECONDS = 0.5

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate["SlowStore", P], Coroutine[Any, Any, T]]


def verb(function: Callable[Concatenate[Database, int, P], T], *, wakes: bool = False) -> Verb[P, T]:
    """A function as a verb of the port: it runs in a thread, in one transaction, at one instant."""

    async def run(self: "SlowStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            with self.database.transaction():
                answer = function(self.database, self.database.now(), *args, **kwargs)
                if wakes:
                    fill_lanes(self.database, self.database.now(), all_jobs(self.database))
                return answer

        answer = await asyncio.to_thread(work)
        if wakes and all(args[:1]):  # an exchange without settlements makes no work for others
            self.bell.ring()
        return answer

    return run


class SlowStore:
    """The port over a Database."""

    name: ClassVar[str] = "slow"
    exchanges_in_flight: ClassVar[int] = 1

    def __init__(self, database: Database) -> None:
        self.database = database
        self.bell = Bell()

    @property
    def address(self) -> str:
        return "this process"

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        return []

    def now(self) -> int:
        return self.database.now()

    def new_id(self) -> str:
        return new_id()

    async def diagnose(self) -> list[Finding]:
        answers_ms = await response_ms(lambda: self.get(["no job"]))
        return [reachable(StoreFacts(product="six primitives", response_ms=answers_ms))]

    async def fsck(self, *, repair: bool = False) -> list[Finding]:
        return []

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        await self.bell.wait(queues, min(POLL_SECONDS, (until_ms - self.now()) / 1000))

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        await asyncio.sleep(min(POLL_SECONDS, (until_ms - self.now()) / 1000))

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        await asyncio.sleep(min(POLL_SECONDS, (until_ms - self.now()) / 1000))

    enqueue = verb(enqueue, wakes=True)
    exchange = verb(exchange, wakes=True)
    change = verb(change, wakes=True)
    configure = verb(configure, wakes=True)
    configure_lane = verb(configure_lane, wakes=True)
    flush_outbox = verb(flush_outbox, wakes=True)
    signal = verb(signal, wakes=True)
    extend = verb(extend)
    report = verb(report)
    get = verb(get)
    lease_ends = verb(lease_ends)
    find = verb(find)
    count = verb(count)
    count_up_to = verb(count_up_to)
    depths = verb(depths)
    stats = verb(stats)
    logs = verb(logs)
    purge = verb(purge)
    settings = verb(settings)
    lanes = verb(lanes)
    publish = verb(publish)
    events = verb(events)
    announce = verb(announce)
    workers = verb(workers)
    order_stop = verb(order_stop)
    tallies = verb(tallies)
    audit = verb(audit)
    audit_log = verb(audit_log)
    dependencies = verb(dependencies)
    dependents = verb(dependents)
    flows = verb(list_flows)
    flow_counts = verb(flow_counts)
    edges = verb(edges)
    record_step = verb(record_step)
    recorded = verb(recorded)
