"""Acts on recurring jobs: add one, pause and resume, run now, another rule."""

from __future__ import annotations

from typing import Any

from jobmill.core.changes import Changed
from jobmill.core.job import LIVE
from jobmill.core.values import Filter, NewJob
from jobmill.dashboard.acts.copies import payload_of, tenant_of
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.rules import Written, checked, recurring_job
from jobmill.dashboard.schedules import described
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue


async def recur_add(view: View, fields: Fields) -> Done:
    """Enqueue a recurring job: `name`, `payload` (JSON), `cron` or `every`, `timezone`, `key`, `queue`, `tenant`.

    It needs the permission "recur_edit" as well. A key that a live job has is refused: enqueueing it would change that
    job, which may belong to another tenant.
    """
    view.require("recur_edit")
    cron, every = fields.optional("cron"), fields.optional("every")
    if (cron is None) == (every is None):
        raise InvalidValue("cron", "a cron expression, or else an interval", "both" if cron else "nothing")
    options = {
        "queue": fields.optional("queue"),
        "key": fields.text("key"),
        "cron": cron,
        "every": every,
        "timezone": fields.optional("timezone"),
        "tenant": tenant_of(view, fields),
    }
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    draft = view.jobs.draft(fields.text("name"), payload_of(fields), **given)
    name, key, rule = draft.name, draft.options.unique_key, draft.options.recurrence
    assert rule is not None
    if (await view.jobs.store.find(Filter(unique_key=key, states=LIVE), None, 1)).jobs:
        raise InvalidValue(
            "key", "a key that no waiting or running job has", key, "edit that job, or write another key"
        )
    (enqueued,) = await view.jobs.enqueue_many([draft])
    note, queue = f"recurring: {described(rule)}", draft.options.queue
    await view.jobs.audit("enqueue", who=view.who, queue=queue, ids=[enqueued.id], count=1, note=note)
    if enqueued.status != "created":  # between the two calls
        text = f"Somebody else has just added a job with the key {key}. Check its schedule."
        return Done(text=text, level="caution", count=1)
    return Done(text=f"{name} is added. {described(rule)}.", count=1)


async def recur_pause(view: View, fields: Fields) -> Done:
    """Hold a recurring job back until it is resumed: `id`, `note`."""
    job = await recurring_job(view, fields.text("id"))
    changed = await view.jobs.hold(job.id, note=fields.optional("note"), who=view.who)
    return _done(changed, f"{job.name} is paused. It does not run until somebody resumes it.")


async def recur_resume(view: View, fields: Fields) -> Done:
    """Release a recurring job: `id`. If a run was due meanwhile, one runs at once."""
    job = await recurring_job(view, fields.text("id"))
    changed = await view.jobs.release(job.id, who=view.who)
    return _done(changed, f"{job.name} runs again. If it missed runs, one of them runs now.")


async def recur_run(view: View, fields: Fields) -> Done:
    """Run a recurring job once more, now: `id`. Its schedule stays as it is.

    The run is a job of its own: a recurring job that was made due now would leave out its next occurrence.
    """
    job = await recurring_job(view, fields.text("id"))
    new = NewJob(
        id=view.jobs.store.new_id(),
        name=job.name,
        queue=job.queue,
        payload_json=bytes(job.payload_json),
        priority=job.priority,
        tenant=job.tenant,
        lane=job.lane,
        options=job.options,
    )
    receipt = (await view.jobs.store.enqueue([new]))[0]
    await view.jobs.audit(
        "run_now", who=view.who, queue=job.queue, ids=[receipt.id, job.id], count=1, note=f"a run of {job.id}"
    )
    return Done(text=f"{job.name} runs once more, as job {receipt.id}.", count=1)


async def recur_edit(view: View, fields: Fields) -> Done:
    """Give a recurring job another rule, which stays when code states its own again.

    `id`, `cron` or `every`, `timezone`.
    """
    job = await recurring_job(view, fields.text("id"))
    written = Written(*(fields.optional(field) or "" for field in Written._fields))
    errors, rule = checked(written)
    if rule is None:
        back = view.local(fields.optional("back"), view.url("recurring"))
        again = view.url("ask", "recur_edit", id=job.id, **written._asdict(), back=back)
        why = [f"{field}: {text}" for field, text in errors.items()]
        return Done(text="The schedule was not changed.", level="failed", details=why, goto=again)
    every = written.every or None
    changed = await view.jobs.pin(job.id, cron=rule.cron, every=every, timezone=rule.timezone, who=view.who)
    return _done(
        changed, f"The schedule of {job.name} is pinned: the code does not change it until the pin is released."
    )


async def recur_release(view: View, fields: Fields) -> Done:
    """Give a pinned recurring job the rule that code stated last: `id`."""
    job = await recurring_job(view, fields.text("id"))
    changed = await view.jobs.release_pin(job.id, who=view.who)
    return _done(changed, f"{job.name} follows its code again.")


def _done(changed: Changed, text: str) -> Done:
    if changed.ids:
        return Done(text=text, count=len(changed.ids))
    return Done(text="Nothing was changed.", level="failed", details=list(changed.refused.values()))
