"""Acts on lanes: the rule of a queue for all of them, the limits of one, pause, resume."""

from __future__ import annotations

from typing import Any

from jobmill.client.lane import LaneHandle, Rate, check_running, lane_rule
from jobmill.core import limits
from jobmill.core.durations import to_ms
from jobmill.core.queue_settings import LaneSettings, RateLimit
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.view import View
from jobmill.errors import InvalidValue


async def lanes(view: View, fields: Fields) -> Done:
    """Set the rule for all lanes of a queue: `queue`, `running`, `rate_count` and `rate_per`, `strict`.

    It is the whole rule: what is empty has no limit. With `remove`, or without limits, the rule is removed. A `note` is
    for the audit log.
    """
    view.require_all_tenants()
    queue = view.jobs.queue(limits.check_queue(fields.text("queue")))
    note, is_removed = _note(fields), fields.flag("remove")
    running = None if is_removed else _running(fields)
    rate = None if is_removed else _rate(fields)
    strict = not is_removed and fields.flag("strict")
    wanted = lane_rule(running, rate, strict)
    if (await queue.settings()).lanes == wanted:
        return Done(text="Nothing was changed.")
    await queue.lanes(running=running, rate=rate, strict=strict, who=view.who, note=note)
    if wanted is None:
        return Done(text=f"The rule for the lanes of queue {queue.name} is removed.", count=1)
    return Done(text=f"The rule for the lanes of queue {queue.name} is saved.", count=1)


async def lane(view: View, fields: Fields) -> Done:
    """Set the limits of one lane: `queue`, `lane`, `running`, `rate_count` and `rate_per`, `strict` (yes or no).

    Where a field is empty, the rule of the queue applies; with `reset`, everywhere. A `note` is for the audit log.
    """
    view.require_all_tenants()
    queue, name, note = limits.check_queue(fields.text("queue")), _name(fields), _note(fields)
    wanted: dict[str, Any] = dict.fromkeys(("running", "rate", "strict"))
    if not fields.flag("reset"):
        wanted = {"running": _running(fields), "rate": _rate(fields), "strict": _yes_or_no(fields)}
    before = await view.jobs.queue(queue).lane(name).settings()
    changed = {field: value for field, value in wanted.items() if _is_other(before, field, value)}
    if not changed:
        return Done(text="Nothing was changed.")
    await view.jobs.queue(queue).lane(name, **changed, who=view.who, note=note)
    if not any(value is not None for value in wanted.values()):
        return Done(text=f"The rule of queue {queue} applies to lane {name} again.", count=1)
    return Done(text=f"The limits of lane {name} are saved.", count=1)


async def pause_lane(view: View, fields: Fields) -> Done:
    """Pause a lane: `queue`, `lane`, `note`."""
    handle = _handle(view, fields)
    await handle.pause(who=view.who, note=_note(fields))
    return Done(text=f"Lane {handle.name} is paused. Its running jobs continue.", count=1)


async def resume_lane(view: View, fields: Fields) -> Done:
    """Resume a lane: `queue`, `lane`."""
    handle = _handle(view, fields)
    await handle.resume(who=view.who)
    return Done(text=f"Lane {handle.name} runs again.", count=1)


def _handle(view: View, fields: Fields) -> LaneHandle:
    view.require_all_tenants()
    return view.jobs.queue(limits.check_queue(fields.text("queue"))).lane(_name(fields))


def _name(fields: Fields) -> str:
    return limits.check_lane(fields.exact("lane"))


def _note(fields: Fields) -> str | None:
    note = fields.optional("note")
    return None if note is None else limits.check_note(note)


def _running(fields: Fields) -> int | None:
    return check_running(fields.optional_int("running"))


def _rate(fields: Fields) -> Rate | None:
    count = fields.optional_int("rate_count")
    if count is None:
        return None
    limits.check_int(count, "rate_count", 1, 2**31 - 1)
    per = fields.duration("rate_per")
    to_ms(per, "rate_per", least=1)
    return count, per


def _yes_or_no(fields: Fields) -> bool | None:
    given = fields.optional("strict")
    if given not in (None, "yes", "no"):
        raise InvalidValue("strict", "yes, no, or nothing for the rule of the queue", given)
    return None if given is None else given == "yes"


def _is_other(before: LaneSettings, field: str, value: Any) -> bool:
    """Whether a limit would change."""
    if field == "rate" and value is not None:
        value = RateLimit(value[0], to_ms(value[1], "rate_per"))
    return bool(getattr(before, field) != value)
