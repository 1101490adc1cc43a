"""Acts on flows: retry what failed, cancel what has not ended."""

from __future__ import annotations

from msgspec import structs

from jobmill.client.manage import batches
from jobmill.core.changes import Cancel, Change, Changed, Requeue
from jobmill.core.values import Filter
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.refusals import Refusals
from jobmill.dashboard.selection import FLOW_ACTS, flow_filter, note_of
from jobmill.dashboard.view import View
from jobmill.handlers.flow import in_rounds


async def flow_retry(view: View, fields: Fields) -> Done:
    """Requeue the jobs of a flow that failed or were cancelled, and those that failed because of them: `id`, `note`.

    `tenant` limits it to the jobs of one tenant.
    """
    wanted, note = _wanted(view, fields, "flow_retry"), note_of(fields)
    changed = await in_rounds(lambda: _change(view, wanted, Requeue()))
    return await _done(view, "flow_retry", wanted, changed, note)


async def flow_cancel(view: View, fields: Fields) -> Done:
    """Cancel the jobs of a flow that have not ended: `id`, `note`. `tenant` limits it to the jobs of one tenant."""
    wanted, note = _wanted(view, fields, "flow_cancel"), note_of(fields)
    return await _done(view, "flow_cancel", wanted, await _change(view, wanted, Cancel()), note)


def _wanted(view: View, fields: Fields, act: str) -> Filter:
    wanted = flow_filter(view, fields.text("id"), fields.optional("tenant"))
    return structs.replace(wanted, states=FLOW_ACTS[act])


async def _change(view: View, wanted: Filter, change: Change) -> Changed:
    await view.jobs.open()
    ids, refused = list[str](), dict[str, str]()
    async for answer in batches(view.jobs.store, wanted, change):
        ids += answer.ids
        refused |= answer.refused
    return Changed(ids=ids, refused=refused)


async def _done(view: View, act: str, wanted: Filter, changed: Changed, note: str | None) -> Done:
    count, reasons = len(changed.ids), Refusals()
    if count:
        about = {"flow": wanted.flow} | ({} if wanted.tenant is None else {"tenant": wanted.tenant})
        await view.jobs.audit(act, who=view.who, ids=changed.ids, filter=about, count=count, note=note)
    reasons.add(changed.refused)
    jobs = "1 job of the flow was" if count == 1 else f"{count:,} jobs of the flow were"
    return Done(
        text=f"{jobs if count else 'No job of the flow was'} {'requeued' if act == 'flow_retry' else 'cancelled'}.",
        level="failed" if not count else "caution" if changed.refused else "succeeded",
        details=[group.sentence for group in reasons.groups],
        count=count,
    )
