"""Acts on queues: pause, resume, limits."""

from __future__ import annotations

from datetime import datetime

from jobmill.core import limits
from jobmill.core.durations import instant_ms, to_ms
from jobmill.core.values import RateLimit
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue


async def pause(view: View, fields: Fields) -> Done:
    """Pause a queue: `queue`, `note`, and `until` (how long, or when; "at" for the time in `until_at`)."""
    view.require_all_tenants()
    queue = limits.check_queue(fields.text("queue"))
    is_at = fields.optional("until") == "at"
    until = fields.instant("until_at", view.zone) if is_at else fields.instant_or_duration("until", view.zone)
    if isinstance(until, datetime) and instant_ms(until, "until") <= view.now_ms:
        raise InvalidValue("until_at" if is_at else "until", "a time in the future", str(until))
    await view.jobs.queue(queue).pause(who=view.who, note=fields.optional("note"), until=until)
    return Done(text=f"Queue {queue} is paused. Running jobs continue.", count=1)


async def resume(view: View, fields: Fields) -> Done:
    """Resume a queue: `queue`."""
    view.require_all_tenants()
    queue = limits.check_queue(fields.text("queue"))
    await view.jobs.queue(queue).resume(who=view.who)
    return Done(text=f"Queue {queue} runs again.", count=1)


async def limit(view: View, fields: Fields) -> Done:
    """Set the limits of a queue: `queue`, `running_limit`, `rate_count` and `rate_per`; an empty one removes it.

    A `note` is for the audit log.
    """
    view.require_all_tenants()
    queue = view.jobs.queue(limits.check_queue(fields.text("queue")))
    running, count = fields.optional_int("running_limit"), fields.optional_int("rate_count")
    note = fields.optional("note")
    # All are checked before one is written.
    if note is not None:
        limits.check_note(note)
    for field, value in (("running_limit", running), ("rate_count", count)):
        if value is not None:
            limits.check_int(value, field, 1, 2**31 - 1)
    per = fields.duration("rate_per") if count is not None else "1s"
    before = await queue.settings()
    wanted = None if count is None else RateLimit(count, to_ms(per, "rate_per", least=1))
    changes = (before.running_limit != running, before.rate_limit != wanted)
    if changes[0]:
        await queue.running_limit(running, who=view.who, note=note)
    if changes[1]:
        await queue.rate_limit(count, per, who=view.who, note=note)
    if not any(changes):
        return Done(text="Nothing was changed.")
    return Done(text=f"The limits of queue {queue.name} are saved.", count=1)
