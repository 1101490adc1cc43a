"""What becomes of each option of Celery: mapped (in `jobmill.compat.celery`), ignored, or refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from jobmill.errors import InvalidValue
from jobmill.handlers.options import ErrorTypes, Isolate

PAGE = "docs/moving-in.md"


class TaskOptions(TypedDict, total=False):
    """Options of `@shared_task` and `@app.task` that have an effect, and those that are ignored."""

    name: str
    queue: str
    priority: int
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: ErrorTypes
    dont_autoretry_for: ErrorTypes
    retry_kwargs: dict[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: int
    retry_jitter: bool
    time_limit: float
    expires: float
    ignore_result: bool
    acks_late: bool
    reject_on_worker_lost: bool
    typing: bool
    #: Jobmill's own: the process of an attempt, which a time limit can end.
    isolate: Isolate
    serializer: Literal["json"]
    compression: str
    send_events: bool
    shared: bool
    lazy: bool
    store_errors_even_if_ignored: bool
    throws: ErrorTypes
    track_started: bool
    trail: bool
    resultrepr_maxsize: int


#: Options that mean nothing here, so that leaving them out changes nothing.
IGNORED = {
    "serializer": "payloads are JSON (another serializer than json is refused)",
    "compression": "a store decides itself",
    "send_events": "workers count and announce always",
    "shared": "a task belongs to the client that is bound",
    "lazy": "a task belongs to the client that is bound",
    "store_errors_even_if_ignored": "errors are always stored",
    "throws": "it only changed how Celery logs",
    "track_started": "a running job is always shown as running",
    "trail": "it belongs to Celery's result trees",
    "resultrepr_maxsize": "it only changed how Celery logs",
    "retry": "the client of a store connects again by itself",
    "retry_policy": "the client of a store connects again by itself",
    "connection": "the client has its own connections",
    "producer": "the client has its own connections",
    "add_to_parent": "it belongs to Celery's result trees",
    "shadow": "it only changed the name in Celery's logs",
    "argsrepr": "it only changed Celery's logs",
    "kwargsrepr": "it only changed Celery's logs",
    "delivery_mode": "jobs are always stored durably, as far as the store is",
}

_WORKFLOWS = "use chain, group and chord of jobmill.compat.celery, or flows of Jobmill"
#: Options and names that Jobmill cannot honor, and what to do instead.
REFUSED = {
    "base": "there are no task classes: use hooks, jobs.around and jobs.lifespan",
    "rate_limit": 'Jobmill limits a queue, for all workers: jobs.queue("api").rate_limit(10, per="1m")',
    "lane": "give it with the handler of the task: task.handler.options(lane=...).draft(args=[...], kwargs={})",
    "soft_time_limit": "nothing is raised inside a running function: use time_limit",
    "acks_on_failure_or_timeout": "a job that fails is settled, and is not delivered again",
    "pydantic": "write a handler of Jobmill, which validates by annotations",
    "backend": "results are in the store of the jobs",
    "exchange": "there are no exchanges: use queue",
    "routing_key": "there are no exchanges: use queue",
    "link": _WORKFLOWS,
    "link_error": "use the hook jobs.on('failed')",
    "chord": _WORKFLOWS,
    "group_id": _WORKFLOWS,
    "chunks": _WORKFLOWS,
    "map": _WORKFLOWS,
    "starmap": _WORKFLOWS,
    "replace": _WORKFLOWS,
    "delay_on_commit": "use delay: in Django it joins the open transaction",
    "apply_async_on_commit": "use apply_async: in Django it joins the open transaction",
    "args": "a retry has the arguments of its job",
    "kwargs": "a retry has the arguments of its job",
    "throw": "retry() always raises",
    "apply": "call the task as a function, or use the test kit",
    "update_state": "the states of a job are fixed: report with task.context.progress(percent, message)",
    "Ignore": "return, or raise jobmill.Fail",
    "Reject": "raise jobmill.Fail, or jobmill.Snooze for a later run",
    "SoftTimeLimitExceeded": "nothing is raised inside a running function: use time_limit",
    "current_task": "use bind=True",
    "signals": "use hooks: jobs.on('succeeded') and others",
}


def refusal(name: str) -> str:
    """Why Celery's option or name is not there, and the page to read."""
    return f"{name} of Celery is not supported: {REFUSED.get(name, 'Jobmill does not know it')}; see {PAGE}"


def check_others(given: Mapping[str, object]) -> None:
    """Refuse options that are not mapped, unless they mean nothing here."""
    for name, value in given.items():
        if value is None or (name in IGNORED and (name != "serializer" or value == "json")):
            continue
        why = IGNORED.get(name) or REFUSED.get(name, "Jobmill does not know it")
        raise InvalidValue(name, f"no {name}", value, f"{why}; see {PAGE}")
