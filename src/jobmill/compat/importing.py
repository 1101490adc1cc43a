"""Imports jobs of other systems: what waits there becomes jobs of a client, each once by its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct, field

from jobmill.client.client import Client
from jobmill.compat.celery.task import EXPIRES
from jobmill.compat.found import ForeignJob, NotImportable, id_for
from jobmill.compat.plain import TOO_LARGE
from jobmill.compat.tagged import to_tagged
from jobmill.core.durations import to_datetime
from jobmill.core.payload import MAX_BYTES
from jobmill.errors import InvalidValue
from jobmill.handlers.draft import Draft
from jobmill.handlers.options import DEFAULT_QUEUE

#: Jobs that are written in one call.
WRITTEN_AT_ONCE = 200
EXAMPLES = 3
#: The default queues of others.
QUEUES = {"celery": DEFAULT_QUEUE, "arq:queue": DEFAULT_QUEUE}


class Imported(Struct):
    """What was found, and what became of it."""

    #: Jobs that can be imported, by queue and name.
    found: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Of these, jobs that this import created, and those that were in the store already.
    created: Counter[tuple[str, str]] = field(default_factory=Counter)
    existed: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Of the jobs that can be imported: those that a worker of the other system has, or had when it was killed.
    unacknowledged: int = 0
    #: The number of jobs that cannot be imported, by reason, and the ids of some.
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    #: Of the other system: what is not imported at all.
    left: dict[str, int] = field(default_factory=dict)


async def import_jobs(
    client: Client,
    source: AsyncIterator[ForeignJob | NotImportable],
    *,
    names: Mapping[str, str],
    queues: Mapping[str, str],
    apply: bool,
) -> Imported:
    """Read all jobs of a source and, with `apply`, enqueue them. `names` and `queues` give others than theirs."""
    done, drafts = Imported(), list[Draft[Any]]()
    async for one in source:
        try:
            if isinstance(one, NotImportable):
                raise one
            draft = to_draft(client, one, names, QUEUES | dict(queues))
        except NotImportable as error:
            done.refused[error.reason] += 1
            if len(examples := done.examples.setdefault(error.reason, [])) < EXAMPLES:
                examples.append(error.id)
            continue
        done.found[draft.options.queue, draft.name] += 1
        done.unacknowledged += one.unacknowledged
        drafts.append(draft)
        if len(drafts) >= WRITTEN_AT_ONCE:
            await _write(client, drafts, done, apply)
    await _write(client, drafts, done, apply)
    return done


def to_draft(client: Client, job: ForeignJob, names: Mapping[str, str], queues: Mapping[str, str]) -> Draft[Any]:
    """The job as one of this client. Where the client has handlers, the job must fit one of them."""
    name = names.get(job.name, job.name)
    options: dict[str, Any] = {
        "id": id_for(job.system, job.id),
        "queue": queues.get(job.queue, job.queue),
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "backoff": None if job.backoff_ms is None else job.backoff_ms / 1000,
        "headers": None if job.expires_ms is None else {EXPIRES: str(job.expires_ms)},
    }
    try:
        if job.due_ms is not None:
            options["due_at"] = to_datetime(job.due_ms)
        if job.timeout_ms is not None:
            options["timeout"] = job.timeout_ms / 1000
        draft = _draft(client, name, job, options)
    except InvalidValue as error:
        raise NotImportable(_reason(error, job), job.id) from None
    if len(draft.payload_json) > MAX_BYTES:
        raise NotImportable(TOO_LARGE, job.id)
    return draft


def _draft(client: Client, name: str, job: ForeignJob, options: dict[str, Any]) -> Draft[Any]:
    handler = client.handlers.get(name)
    if handler is None and client.handlers:
        raise NotImportable(f"there is no handler named {name!r}: define it, or give --rename {name}=HANDLER", job.id)
    if handler is not None and not handler.takes_calls:
        return handler.options(**options).draft(*job.args, **job.kwargs)
    return client.draft(name, {"args": to_tagged(job.args), "kwargs": to_tagged(job.kwargs)}, **options)


def _reason(error: InvalidValue, job: ForeignJob) -> str:
    if error.field == "queue":
        return f"its queue {job.queue!r} cannot have this name here: give --rename-queue {job.queue}=NEW"
    return error.without_value()


async def _write(client: Client, drafts: list[Draft[Any]], done: Imported, apply: bool) -> None:
    if apply and drafts:
        for draft, enqueued in zip(drafts, await client.enqueue_many(drafts), strict=True):
            counted = done.created if enqueued.created else done.existed
            counted[draft.options.queue, draft.name] += 1
    drafts.clear()
