"""Acts that make jobs: enqueue a new one, or an edited copy of one that exists."""

from __future__ import annotations

from typing import Any

import msgspec

from jobmill.core.job import Job
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.shown import HIDDEN
from jobmill.dashboard.view import NotAllowed, View
from jobmill.errors import InvalidValue


async def enqueue(view: View, fields: Fields) -> Done:
    """Enqueue a job: `name`, `payload` (JSON), `queue`, `delay`, `priority`, `tenant`, `lane`."""
    return await _enqueue(view, fields, payload_of(fields))


async def copy(view: View, fields: Fields) -> Done:
    """Enqueue an edited copy of a job: `id`, and the fields of `enqueue`. Hidden values are those of the job."""
    view.require("see_payload")
    original = await view.job(fields.text("id"))
    return await _enqueue(view, fields, unhidden(payload_of(fields), original.payload), original)


async def _enqueue(view: View, fields: Fields, payload: Any, original: Job | None = None) -> Done:
    tenant = tenant_of(view, fields)
    options: dict[str, Any] = {
        "queue": fields.optional("queue"),
        "delay": fields.duration("delay", "0s"),
        "priority": fields.optional_int("priority"),
        "tenant": tenant,
        "lane": fields.exact("lane"),
    }
    if original is not None and original.headers:
        options["headers"] = original.headers
    name = fields.text("name")
    enqueued = await view.jobs.enqueue(name, payload, **{key: one for key, one in options.items() if one is not None})
    note = f"a copy of {original.id}" if original is not None else None
    queue = options["queue"]
    await view.jobs.audit("enqueue", who=view.who, queue=queue, ids=[enqueued.id], count=1, note=note)
    return Done(text=f"Job {name} is enqueued.", count=1, goto=view.url("jobs", enqueued.id))


def tenant_of(view: View, fields: Fields) -> str | None:
    """The tenant of a new job: one of those that the visitor may see."""
    tenant = fields.optional("tenant")
    if view.access.tenants is not None and tenant not in view.access.tenants:
        raise NotAllowed("the job must have one of your tenants")
    return tenant


def payload_of(fields: Fields) -> Any:
    """The payload of a form."""
    text = fields.optional("payload")
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidValue("payload", "JSON", text[:100], str(error)) from None


def unhidden(edited: Any, original: Any) -> Any:
    """An edited payload in which values that are still hidden are those of the original."""
    if isinstance(edited, str) and edited == HIDDEN:
        return original
    if isinstance(edited, dict):
        before = original if isinstance(original, dict) else {}
        return {key: unhidden(one, before.get(key)) for key, one in edited.items()}
    if isinstance(edited, list):
        before_list = original if isinstance(original, list) and len(original) == len(edited) else [None] * len(edited)
        return [unhidden(one, other) for one, other in zip(edited, before_list, strict=True)]
    return edited
