"""The acts: what visitors can do. Each is a function of a view and the fields of its form, and needs one permission.

`POST /acts/ACTION` runs an act; the page that it came from then shows its notice. Programs get the `Done` as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from jobmill.dashboard.acts.copies import copy, enqueue
from jobmill.dashboard.acts.done import Done
from jobmill.dashboard.acts.flows import flow_cancel, flow_retry
from jobmill.dashboard.acts.jobs import (
    cancel,
    hold,
    release,
    remove,
    reprioritize,
    requeue,
    reschedule,
)
from jobmill.dashboard.acts.lanes import lane, lanes, pause_lane, resume_lane
from jobmill.dashboard.acts.queues import limit, pause, resume
from jobmill.dashboard.acts.recurring import recur_add, recur_edit, recur_pause, recur_release, recur_resume, recur_run
from jobmill.dashboard.acts.runs import stop_run
from jobmill.dashboard.acts.workers import worker_stop
from jobmill.dashboard.fields import Fields
from jobmill.dashboard.view import View

Act: TypeAlias = Callable[[View, Fields], Awaitable[Done]]

#: The name of each act in its URL: the permission that it needs (None: the function decides), and its function.
ACTS: Final[dict[str, tuple[str | None, Act]]] = {
    "requeue": ("requeue", requeue),
    "cancel": ("cancel", cancel),
    "remove": ("remove", remove),
    "hold": ("hold", hold),
    "release": ("release", release),
    "reschedule": ("reschedule", reschedule),
    "reprioritize": ("reprioritize", reprioritize),
    "stop_run": (None, stop_run),
    "pause": ("pause", pause),
    "resume": ("pause", resume),
    "limit": ("limit", limit),
    "lanes": ("limit", lanes),
    "lane": ("limit", lane),
    "pause_lane": ("pause", pause_lane),
    "resume_lane": ("pause", resume_lane),
    "enqueue": ("enqueue", enqueue),
    "copy": ("edit", copy),
    "flow_retry": ("flow_retry", flow_retry),
    "flow_cancel": ("flow_cancel", flow_cancel),
    "worker_stop": ("worker_stop", worker_stop),
    "recur_pause": ("recur_pause", recur_pause),
    "recur_resume": ("recur_pause", recur_resume),
    "recur_run": ("recur_run", recur_run),
    "recur_add": ("enqueue", recur_add),
    "recur_edit": ("recur_edit", recur_edit),
    "recur_release": ("recur_edit", recur_release),
}
