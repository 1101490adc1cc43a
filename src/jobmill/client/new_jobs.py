"""Drafts by the names of their handlers, and drafts as jobs for a store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import structs

from jobmill.client.flows import FlowPlan
from jobmill.core.durations import to_datetime
from jobmill.core.limits import check_name
from jobmill.core.payload import MAX_BYTES, check_size
from jobmill.core.recurrence import Recurrence, first_occurrence
from jobmill.core.values import NOW, Due, NewJob, at
from jobmill.errors import InvalidValue
from jobmill.handlers.conversion import to_plain
from jobmill.handlers.draft import Draft, EnqueuesDrafts, waiting_draft
from jobmill.handlers.handler import Handler
from jobmill.handlers.options import NO_OPTIONS_GIVEN, Options, enqueue_options
from jobmill.handlers.placeholders import FoundPlaceholder
from jobmill.handlers.signature import encode_marked
from jobmill.store import Store

Drafts: TypeAlias = Sequence[Draft[Any]]

#: The options of one job are never larger: only a payload within this distance of the limit has its size checked.
MAX_OPTIONS_BYTES = 64 * 1024


def named_draft(
    client: EnqueuesDrafts, handler: Handler[..., Any] | None, name: str, payload: object, given: dict[str, Any]
) -> Draft[Any]:
    """A draft by the name of its handler. If the client has that handler, its options and annotations apply."""
    options = enqueue_options(given, NO_OPTIONS_GIVEN if handler is None else handler.options_given)
    try:
        if handler is None:
            encoded = msgspec.json.encode(to_plain({} if payload is None else payload, "payload"))
        else:
            encoded = handler.arguments.encode_payload(payload)
            options = handler.with_lane(options, encoded)
    except FoundPlaceholder:
        encode: Any = partial(encode_marked, payload)
        if handler is not None:
            arguments = payload if isinstance(payload, dict) else {"payload": payload}
            options = handler.with_known_lane(options, (), arguments)
            if isinstance(payload, dict):
                encode = partial(handler.arguments.encode_waiting, (), payload)
        return waiting_draft(check_name(name), encode, options, client)
    return Draft(check_name(name), encoded, options, client)


def jobs_of_plan(plan: FlowPlan, store: Store, drafts: Drafts) -> list[NewJob]:
    """The jobs of a flow."""
    return plan.new_jobs(drafts, store.new_id, partial(new_job, store))


def new_job(store: Store, draft: Draft[Any], id: str | None = None) -> NewJob:
    """A draft as a job. `id`: if the draft has none of its own, or it is a job of a flow.

    The fields at the end of NewJob are set apart: msgspec finds a keyword by its position, so that each costs time.
    """
    given = draft.options
    if len(draft.payload_json) > MAX_BYTES - MAX_OPTIONS_BYTES:
        check_size(draft.payload_json, b"" if given == NO_OPTIONS_GIVEN else msgspec.json.encode(given))
    new = NewJob(
        id=id or given.id or store.new_id(),
        name=draft.name,
        queue=given.queue,
        payload_json=draft.payload_json,
        due=given.due if given.recurrence is None else _first_due(store, given.recurrence, given),
        priority=given.priority,
        unique_key=_dedupe(draft) if given.dedupe else given.unique_key,
        tenant=given.tenant,
        options=given.stored,
        recurrence=given.recurrence,
        keeps_due=given.recurrence is not None and given.due == NOW,
    )
    has_more = given.policy is not None or given.lane is not None
    return structs.replace(new, policy=given.policy, lane=given.lane) if has_more else new


def _first_due(store: Store, recurrence: Recurrence, given: Options) -> Due:
    """The first run of a recurring job: at its first occurrence, unless a time was given."""
    now_ms = store.now()
    first = first_occurrence(recurrence, now_ms) if given.due == NOW else given.due.resolve(now_ms)
    until_ms = recurrence.until_ms
    if first is None or (until_ms is not None and first > until_ms):
        until = None if until_ms is None else str(to_datetime(until_ms))
        raise InvalidValue("until", "an end that is not before the first run", until)
    return at(first) if given.due == NOW else given.due


def _dedupe(draft: Draft[Any]) -> str:
    """The unique key of a job with `dedupe=True`, made from the payload as it is stored."""
    from jobmill.core.unique_keys import dedupe_key, storable_key  # 2 ms, with json and hashlib

    return storable_key(dedupe_key(draft.name, draft.options.tenant, msgspec.json.decode(draft.payload_json)))
