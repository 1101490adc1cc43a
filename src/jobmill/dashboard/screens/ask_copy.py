"""The form for a new job, and for an edited copy of one."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from jobmill.dashboard.view import View


class CopyScreen(Struct, frozen=True, kw_only=True):
    """What the form begins with. `id` is the job that is copied; None for a new job."""

    id: str | None
    name: str
    queue: str
    priority: int
    tenant: str | None
    lane: str | None = None
    payload: str
    unique_key: str | None
    #: Names that this process or a worker knows.
    names: list[str]


async def ask_copy(view: View) -> CopyScreen:
    """The form for an edited copy."""
    view.require("edit")
    view.require("see_payload")
    job = await view.job(view.param("id") or "")
    return CopyScreen(
        id=job.id,
        name=job.name,
        queue=job.queue,
        priority=job.priority,
        tenant=job.tenant,
        lane=job.lane,
        payload=_text(view.document(job)["payload"]),
        unique_key=job.unique_key,
        names=await known_names(view),
    )


async def ask_enqueue(view: View) -> CopyScreen:
    """The form for a new job."""
    view.require("enqueue")
    return CopyScreen(
        id=None,
        name=view.param("name") or "",
        queue=view.param("queue") or "default",
        priority=0,
        tenant=view.access.tenants[0] if view.access.tenants else None,
        payload=view.jobs.payload_form,
        unique_key=None,
        names=await known_names(view),
    )


async def known_names(view: View) -> list[str]:
    """The names of handlers that workers or this process have, for the list of a field."""
    names = {name for card in await view.reads.workers() for name in card.names}
    return sorted(names.union(view.jobs.handlers))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
