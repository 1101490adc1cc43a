"""The verb enqueue: insert many at once, and find out about the few that were there already."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.events import Event
from jobmill.core.job import NO_OPTIONS
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NewJob, Receipt
from jobmill.stores.sqlite.queues import tell
from jobmill.stores.sqlite.context import Context

# A larger payload lies beside its job. SQLite writes the whole row again at each claim, extension and settlement.
LARGE = 2_048

_encode = msgspec.json.Encoder().encode
_decode_recurrence = msgspec.json.Decoder(Recurrence).decode


def enqueue(context: Context, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Insert jobs; a receipt for each, in order."""
    receipts: list[Receipt] = []
    for recurring, group in itertools.groupby(new_jobs, lambda new: new.recurrence is not None):
        if recurring:
            receipts += [_update_or_insert(context, new) for new in group]
        else:
            receipts += _insert(context, list(group))
    context.wakes += 1
    return receipts


def _insert(context: Context, new_jobs: list[NewJob]) -> list[Receipt]:
    (last_seq,) = context.row("last_seq")
    met = context.write_rows("insert", (context.now_ms,), [_row(new, context.now_ms) for new in new_jobs])
    if met == len(new_jobs):
        receipts = [Receipt(new.id, "created") for new in new_jobs]
    else:
        fresh = {id for (id,) in context.rows("ids_after", (last_seq,))}
        receipts = [_receipt(context, new, fresh) for new in new_jobs]
    for new, receipt in zip(new_jobs, receipts, strict=True):
        if len(new.payload_json) > LARGE and receipt.how == "created":
            context.write("insert_payload", (new.id, new.payload_json.decode()))
    if context.queues.any(context):
        _tell(context, [new for new, receipt in zip(new_jobs, receipts, strict=True) if receipt.how == "created"])
    return receipts


def _receipt(context: Context, new: NewJob, fresh: set[str]) -> Receipt:
    """What became of a job of a call in which not all were inserted; `fresh` are those that were, still unclaimed."""
    if new.id in fresh:
        fresh.remove(new.id)
        return Receipt(new.id, "created")
    if context.row("seq_of", (new.id,)):
        return Receipt(new.id, "exists")
    _, owner, _ = context.row("owner", (new.queue, new.name, new.unique_key))
    return Receipt(owner, "duplicate")


def _update_or_insert(context: Context, new: NewJob) -> Receipt:
    """A recurrence whose key is live is updated, even while its job runs."""
    if context.row("seq_of", (new.id,)):
        return Receipt(new.id, "exists")
    owner = context.row("owner", (new.queue, new.name, new.unique_key))
    if owner is None:
        return _insert(context, [new])[0]
    seq, id, old = owner
    if old is None:
        return Receipt(id, "duplicate")
    _write_payload(context, seq, id, new)
    known = _readable(old)
    assert new.recurrence is not None
    if not (new.keeps_due and known is not None and new.recurrence.same_rule(known)):
        recurrence = structs.replace(new.recurrence, revision=known.revision + 1 if known else 1)
        context.write("update_recurrence", (seq, new.due.resolve(context.now_ms), _encode(recurrence).decode()))
    return Receipt(id, "updated")


def _write_payload(context: Context, seq: int, id: str, new: NewJob) -> None:
    payload = new.payload_json.decode()
    large = len(new.payload_json) > LARGE
    context.write("remove_payload", (seq,))
    context.write("update_payload", (seq, context.now_ms, None if large else payload))
    if large:
        context.write("insert_payload", (id, payload))


def _readable(recurrence: str) -> Recurrence | None:
    try:
        return _decode_recurrence(recurrence)
    except msgspec.MsgspecError:
        # Garbage is replaced by something readable, whatever it was.
        return None


def _row(new: NewJob, now_ms: int) -> tuple[object, ...]:
    due_ms = new.due.resolve(now_ms)
    recurring = new.recurrence is not None
    return (
        new.id,
        new.queue,
        new.name,
        new.priority,
        due_ms,
        new.unique_key,
        new.tenant,
        None if new.options is NO_OPTIONS or new.options == NO_OPTIONS else _encode(new.options).decode(),
        _encode(new.recurrence).decode() if recurring else None,
        due_ms if recurring else None,
        None if len(new.payload_json) > LARGE else new.payload_json.decode(),
    )


def _tell(context: Context, new_jobs: list[NewJob]) -> None:
    for queue in {new.queue for new in new_jobs}:
        tell(
            context,
            queue,
            lambda queue=queue: [  # type: ignore[misc]
                Event(type="enqueued", job_id=new.id, name=new.name, queue=queue, at_ms=context.now_ms)
                for new in new_jobs
                if new.queue == queue
            ],
        )
