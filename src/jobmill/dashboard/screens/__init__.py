"""The screens: for each a function that reads its data, and a template of the same name that shows it.

The data of a screen is a Struct. The same URL returns it as JSON when a program asks for `application/json`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from jobmill.dashboard.screens.ask_copy import ask_copy, ask_enqueue
from jobmill.dashboard.screens.ask_jobs import ask_jobs
from jobmill.dashboard.screens.ask_recur_add import ask_recur_add
from jobmill.dashboard.screens.audit import audit
from jobmill.dashboard.screens.errors import errors
from jobmill.dashboard.screens.flow import ask_flow, flow
from jobmill.dashboard.screens.flows import flows
from jobmill.dashboard.screens.job import job
from jobmill.dashboard.screens.jobs import jobs
from jobmill.dashboard.screens.lanes import ask_lane, ask_lanes, ask_pause_lane, lanes
from jobmill.dashboard.screens.overview import overview
from jobmill.dashboard.screens.queue import ask_pause, queue
from jobmill.dashboard.screens.queues import queues
from jobmill.dashboard.screens.recurring import ask_recur_edit, recurring
from jobmill.dashboard.screens.related import related
from jobmill.dashboard.screens.run import run
from jobmill.dashboard.screens.system import system
from jobmill.dashboard.screens.workers import ask_worker_stop, workers
from jobmill.dashboard.view import View


class Screen(NamedTuple):
    """One page: its path, what reads its data, its template, and whether it shows the jobs of all tenants.

    While the store is unavailable, a page with `shows_last` shows its last figures.
    """

    path: str
    read: Callable[[View], Awaitable[Any]]
    template: str
    of_all_tenants: bool = True
    shows_last: bool = False


SCREENS: Final = (
    Screen("/queues", queues, "queues.html", shows_last=True),
    Screen("/ask/copy", ask_copy, "ask_copy.html", of_all_tenants=False),
    Screen("/ask/enqueue", ask_enqueue, "ask_copy.html", of_all_tenants=False),
    Screen("/jobs/{id:path}", job, "job.html", of_all_tenants=False),
    Screen("/", overview, "overview.html", of_all_tenants=False, shows_last=True),
    Screen("/queues/{queue:path}", queue, "queue.html", shows_last=True),
    Screen("/ask/pause/{queue:path}", ask_pause, "ask_pause.html"),
    # Not below /queues/NAME: the name of a queue may have a "/".
    Screen("/lanes/{queue:path}", lanes, "lanes.html"),
    Screen("/ask/lanes/{queue:path}", ask_lanes, "ask_lanes.html"),
    Screen("/ask/lane", ask_lane, "ask_lane.html"),
    Screen("/ask/pause_lane", ask_pause_lane, "ask_pause_lane.html"),
    Screen("/jobs", jobs, "jobs.html", of_all_tenants=False),
    Screen("/ask/jobs", ask_jobs, "ask_jobs.html", of_all_tenants=False),
    Screen("/runs/{id}", run, "run.html", of_all_tenants=False),
    Screen("/workers", workers, "workers.html"),
    Screen("/ask/worker_stop", ask_worker_stop, "ask_worker_stop.html"),
    Screen("/flows", flows, "flows.html"),
    Screen("/flows/{id:path}", flow, "flow.html", of_all_tenants=False),
    Screen("/ask/flow", ask_flow, "ask_flow.html", of_all_tenants=False),
    Screen("/related/{id:path}", related, "related.html", of_all_tenants=False),
    Screen("/audit", audit, "audit.html"),
    Screen("/system", system, "system.html"),
    Screen("/errors", errors, "errors.html"),
    Screen("/recurring", recurring, "recurring.html", of_all_tenants=False),
    Screen("/ask/recur_add", ask_recur_add, "ask_recur_add.html", of_all_tenants=False),
    Screen("/ask/recur_edit", ask_recur_edit, "ask_recur_edit.html", of_all_tenants=False),
)
