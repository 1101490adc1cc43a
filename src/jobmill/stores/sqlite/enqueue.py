"""The verb enqueue: insert many jobs at once, then look up the few that were there already."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import structs

from jobmill.core.changes import Cancel
from jobmill.core.due import Held
from jobmill.core.events import bare_job, enqueued_events
from jobmill.core.flows import recurring_dependency
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import Owner, Replace, is_suspended, when_taken
from jobmill.core.values import NewJob, Receipt
from jobmill.stores.common.whole_jobs import updated_fields
from jobmill.stores.sqlite.change import change
from jobmill.stores.sqlite.codec import LARGE_PAYLOAD, held_columns, held_job_row, new_job_row, readable
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish
from jobmill.stores.sqlite.flows import connect_jobs
from jobmill.stores.sqlite.lanes import join_lanes

Kind: TypeAlias = Literal["plain", "recurring", "held", "with_policy"]


def enqueue(context: SqliteContext, new_jobs: Sequence[NewJob], *, within: bool = False) -> list[Receipt]:
    """Insert jobs; a receipt for each, in order. `within`: in a transaction of the caller."""
    receipts: list[Receipt] = []
    connects = False
    for kind, group in itertools.groupby(new_jobs, _kind):
        if kind == "recurring":
            receipts += [_update_or_insert(context, new) for new in group]
        elif kind == "with_policy":
            receipts += [_insert_by_policy(context, new) for new in group]
        else:
            receipts += _insert(context, list(group), kind)
            connects = connects or kind == "held"
    if connects:
        connect_jobs(context, new_jobs, receipts, within=within)
    context.wakes += 1
    return receipts


def _kind(new: NewJob) -> Kind:
    """How a job is inserted. This runs for each job, instead of several searches for jobs that are special."""
    if new.recurrence is not None:
        return "recurring"
    if new.policy is not None:
        return "with_policy"
    return "plain" if new.flow is None and new.lane is None and not new.after else "held"


def _insert(context: SqliteContext, new_jobs: list[NewJob], kind: Kind) -> list[Receipt]:
    is_held = kind == "held" or (kind != "plain" and any(new.lane is not None for new in new_jobs))
    statement, row = ("insert_held", held_job_row) if is_held else ("insert", new_job_row)
    inserted = context.write_rows(statement, (context.now_ms,), [row(new, context.now_ms) for new in new_jobs])
    if inserted == len(new_jobs):
        created, receipts = new_jobs, [Receipt(new.id, "created") for new in new_jobs]
    else:
        fresh = {id for (id,) in context.rows("newest_ids", (inserted,))}
        receipts = [_receipt(context, new, fresh) for new in new_jobs]
        created = [new for new, receipt in zip(new_jobs, receipts, strict=True) if receipt.created]
    if is_held:
        join_lanes(context, created)
    for new in created:
        if len(new.payload_json) > LARGE_PAYLOAD:
            context.write("insert_payload", (new.id, new.payload_json.decode()))
    if feeding(context):
        publish(context, enqueued_events(new_jobs, receipts, context.now_ms))
    return receipts


def _receipt(context: SqliteContext, new: NewJob, fresh: set[str]) -> Receipt:
    """The receipt of a job from a call that did not insert all; `fresh`: ids inserted, without a receipt so far."""
    if new.id in fresh:
        fresh.remove(new.id)
        return Receipt(new.id, "created")
    if context.row("subject", (new.id,)):
        return Receipt(new.id, "exists")
    owner = context.row("owner", (new.queue, new.name, new.unique_key))
    return Receipt(owner[1], "duplicate")


def _update_or_insert(context: SqliteContext, new: NewJob) -> Receipt:
    """A recurring job whose unique key is live updates the live job, even while that runs."""
    if new.after:
        raise recurring_dependency(new.id)
    if context.row("subject", (new.id,)):
        return Receipt(new.id, "exists")
    owner = context.row("owner", (new.queue, new.name, new.unique_key))
    if owner is None:
        return _insert(context, [new], "recurring")[0]
    seq, id, rule, held, lane, state, *_ = owner
    if rule is None:
        return Receipt(id, "duplicate")
    # The update replaces a recurrence that cannot be read.
    old = readable(rule, Recurrence) or Recurrence(key="")
    job = bare_job(id, new.name, new.queue, state, 0)
    job = structs.replace(job, recurrence=old, held=readable(held, Held), lane=lane)
    fields = updated_fields(new, job, context.now_ms)
    del fields["payload_json"]
    _replace(context, seq, id, new, fields, lane)
    return Receipt(id, "pinned" if old.pinned else "updated")


def _insert_by_policy(context: SqliteContext, new: NewJob) -> Receipt:
    """A job that says what happens if its unique key is taken."""
    if context.row("subject", (new.id,)):
        return Receipt(new.id, "exists")
    key = (new.queue, new.name, new.unique_key)
    if (owner := context.row("owner", key)) is not None:
        seq, id, rule, held_json, lane, state, started_ms, waits_for = owner
        held = readable(held_json, Held)
        suspended = is_suspended(held, started_ms, waits_for)
        live = Owner(id=id, state=state, held=held, lane=lane, is_recurring=rule is not None, is_suspended=suspended)
        taken = when_taken(new.policy, new.due, live, context.now_ms)
        if taken == "duplicate":
            return Receipt(id, "duplicate")
        if isinstance(taken, Replace):
            _replace(context, seq, id, new, taken.fields, lane)
            return Receipt(id, "updated")
        if taken == "cancel":
            change(context, [id], Cancel())
        else:
            context.update_job(seq, {"unique_key": None})
    if new.policy is not None and new.policy.for_ms is not None:
        if (holder := context.row("key_holder", (*key, context.now_ms))) is not None:
            return Receipt(holder[0], "duplicate")
        context.write("take_key", (*key, new.id, context.now_ms + new.policy.for_ms))
    return _insert(context, [new], "with_policy")[0]


def _replace(
    context: SqliteContext, seq: int, id: str, new: NewJob, fields: dict[str, object], lane: str | None
) -> None:
    """Write fields of a live job, which may have a lane, and the payload of the new job."""
    payload, is_large = new.payload_json.decode(), len(new.payload_json) > LARGE_PAYLOAD
    columns = held_columns(fields, context.now_ms)
    context.update_job(seq, columns | {"payload": None if is_large else payload})
    if lane is not None:
        context.changed_lanes[new.queue, lane] = None
    context.write("remove_payload", (seq,))
    if is_large:
        context.write("insert_payload", (id, payload))
