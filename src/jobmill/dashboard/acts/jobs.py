"""Acts on jobs: on those with the ids given at once, on all that match a search in the background."""

from __future__ import annotations

from msgspec import structs

from jobmill.client.manage import batches
from jobmill.core import limits
from jobmill.core.changes import NO_SUCH_JOB, Requeue
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.acts.runs import begin_run
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.refusals import Refusals
from jobmill.dashboard.runs import RunOrder
from jobmill.dashboard.search import Search
from jobmill.dashboard.selection import (
    VERBS,
    candidates,
    change_of,
    chips_of,
    left_out,
    note_of,
    selection_of,
    spread_of,
)
from jobmill.dashboard.view import View


async def requeue(view: View, fields: Fields) -> Done:
    """Run final jobs again: `id`, or `q`, `state` and `all=1`; `spread` (a period), `note`."""
    return await _act("requeue", view, fields)


async def cancel(view: View, fields: Fields) -> Done:
    """Cancel waiting and running jobs: `id`, or `q`, `state` and `all=1`; `note`."""
    return await _act("cancel", view, fields)


async def remove(view: View, fields: Fields) -> Done:
    """Remove jobs that are not running: `id`, or `q`, `state` and `all=1`; `note`."""
    return await _act("remove", view, fields)


async def hold(view: View, fields: Fields) -> Done:
    """Hold waiting jobs back: `id`, or `q`, `state` and `all=1`; `note`."""
    return await _act("hold", view, fields)


async def release(view: View, fields: Fields) -> Done:
    """Release jobs that a person held: `id`, or `q`, `state` and `all=1`; `note`."""
    return await _act("release", view, fields)


async def reschedule(view: View, fields: Fields) -> Done:
    """Give waiting jobs another due time: `id`, or `q`, `state` and `all=1`; `delay` or `due_at`, `note`."""
    return await _act("reschedule", view, fields)


async def reprioritize(view: View, fields: Fields) -> Done:
    """Give waiting jobs another priority: `id`, or `q`, `state` and `all=1`; `priority`, `note`."""
    return await _act("reprioritize", view, fields)


async def _act(act: str, view: View, fields: Fields) -> Done:
    limits.check_note(view.who, "who")
    chosen = selection_of(
        view, fields.all("id"), fields.optional("q") or "", fields.optional("state"), fields.flag("all")
    )
    if chosen.search is not None:
        return _started(act, view, fields, chosen.search)
    ids, refused = await _allowed(view, chosen.ids)
    change, note, changed = change_of(act, view, fields), note_of(fields), list[str]()
    if isinstance(change, Requeue):
        change = structs.replace(change, step_ms=spread_of(fields) / max(1, len(ids)))
    await view.jobs.open()
    async for answer in batches(view.jobs.store, ids, change):
        changed += answer.ids
        refused |= answer.refused
    if changed:
        await view.jobs.audit(act, who=view.who, ids=changed, count=len(changed), note=note)
    reasons, words = Refusals(), VERBS[act]
    reasons.add(refused)
    jobs = "1 job was" if len(changed) == 1 else f"{len(changed):,} jobs were"
    return Done(
        text=f"{jobs if changed else 'No job was'} {words.done}.",
        level="failed" if not changed else "caution" if refused else "succeeded",
        details=[group.sentence for group in reasons.groups],
        count=len(changed),
    )


def _started(act: str, view: View, fields: Fields, search: Search) -> Done:
    change = change_of(act, view, fields)
    order = RunOrder(
        act=act,
        change=change,
        filter=candidates(change, search.filter),
        left_out=left_out(change, search.filter),
        q=search.q,
        chips=chips_of(search),
        state=search.state,
        searched=search.filter,
        who=view.who,
        note=note_of(fields),
        spread_ms=spread_of(fields) if isinstance(change, Requeue) else 0,
    )
    return begin_run(view, order)


async def _allowed(view: View, ids: list[str]) -> tuple[list[str], dict[str, str]]:
    """The ids of jobs that the visitor may see; for others there is no such job."""
    if view.access.tenants is None:
        return ids, {}
    await view.jobs.open()
    pairs = zip(ids, await view.jobs.store.get(ids), strict=True)
    allowed = {id: None for id, job in pairs if job is not None and job.tenant in view.access.tenants}
    return list(allowed), dict.fromkeys([id for id in ids if id not in allowed], NO_SUCH_JOB)
