"""Acts on flows: retry what failed, cancel what has not ended. Those on many jobs run in the background."""

from __future__ import annotations

from msgspec import structs

from jobmill.client.manage import batches
from jobmill.core import limits
from jobmill.core.changes import Change, Changed, Requeue
from jobmill.core.values import Filter
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.acts.runs import begin_run
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.refusals import Refusals
from jobmill.dashboard.runs import RunOrder
from jobmill.dashboard.selection import FLOW_ACTS, MAX_IDS, flow_filter, note_of, words_for
from jobmill.dashboard.view import View, search_text
from jobmill.handlers.flow import MAX_ROUNDS, in_rounds


async def flow_retry(view: View, fields: Fields) -> Done:
    """Requeue the jobs of a flow that failed or were cancelled, and those that failed because of them: `id`, `note`.

    `tenant` limits it to the jobs of one tenant.
    """
    return await _act("flow_retry", view, fields)


async def flow_cancel(view: View, fields: Fields) -> Done:
    """Cancel the jobs of a flow that have not ended: `id`, `note`. `tenant` limits it to the jobs of one tenant."""
    return await _act("flow_cancel", view, fields)


async def _act(act: str, view: View, fields: Fields) -> Done:
    limits.check_note(view.who, "who")
    flow = flow_filter(view, fields.text("id"), fields.optional("tenant"))
    wanted = structs.replace(flow, states=FLOW_ACTS[act].states)
    about = {name: value for name, value in (("flow", flow.flow), ("tenant", flow.tenant)) if value is not None}
    change, note = words_for(act).kind, note_of(fields)
    rounds = MAX_ROUNDS if isinstance(change, Requeue) else 1
    await view.jobs.open()
    if sum(one.count for one in await view.jobs.store.count(wanted)) > MAX_IDS:
        order = RunOrder(
            act=act,
            change=change,
            filter=wanted,
            rounds=rounds,
            q=search_text(about),
            chips=[f"{name}:{value}" for name, value in about.items()],
            state="all",
            searched=flow,
            who=view.who,
            note=note,
        )
        return begin_run(view, order)
    if isinstance(change, Requeue):  # not again what fails again meanwhile
        wanted = structs.replace(wanted, finished_before_ms=view.jobs.store.now() + 1)
    changed = await in_rounds(lambda: _change(view, wanted, change), rounds)
    if changed.ids:
        await view.jobs.audit(act, who=view.who, ids=changed.ids, filter=about, count=len(changed.ids), note=note)
    return _done(act, changed)


async def _change(view: View, wanted: Filter, change: Change) -> Changed:
    ids, refused = list[str](), dict[str, str]()
    async for answer in batches(view.jobs.store, wanted, change):
        ids += answer.ids
        refused |= answer.refused
    return Changed(ids=ids, refused=refused)


def _done(act: str, changed: Changed) -> Done:
    count, reasons = len(changed.ids), Refusals()
    reasons.add(changed.refused)
    jobs = "1 job of the flow was" if count == 1 else f"{count:,} jobs of the flow were"
    return Done(
        text=f"{jobs if count else 'No job of the flow was'} {words_for(act).done}.",
        level="failed" if not count else "caution" if changed.refused else "succeeded",
        details=[group.sentence for group in reasons.groups],
        count=count,
    )
