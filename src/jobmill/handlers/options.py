"""Options: what may be said about a handler and about one job; frozen, validated as they are given.

`HandlerOptions` and `EnqueueOptions` are what users write (and type checkers see); `Options` is what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict

from msgspec import Struct, structs

from jobmill.core import limits
from jobmill.core.durations import instant_ms, to_ms
from jobmill.core.job import NO_OPTIONS, JobOptions, Keep
from jobmill.core.recurrence import Recurrence, recurrence
from jobmill.core.retry import Backoff, backoff
from jobmill.core.values import NOW, Due, after, at
from jobmill.errors import InvalidValue

DEFAULT_QUEUE = "default"

Duration: TypeAlias = float | str | timedelta
#: The user's own backoff: (attempt, error) to a duration.
BackoffFunction: TypeAlias = Callable[[int, BaseException], Duration]


class CommonOptions(TypedDict, total=False):
    """What may be said about a handler, and about one job in particular."""

    queue: str
    priority: int
    max_attempts: int
    max_crashes: int
    timeout: Duration | None
    keep_succeeded: bool | int | str | timedelta | Keep
    keep_failed: bool | int | str | timedelta | Keep


class HandlerOptions(CommonOptions, total=False):
    """What may be said about a handler."""

    name: str
    backoff: Backoff | dict[str, Any] | Duration | BackoffFunction
    isolate: bool
    concurrency: int


class EnqueueOptions(CommonOptions, total=False):
    """What may be said about one job."""

    id: str
    delay: Duration
    due_at: datetime
    unique_key: str
    dedupe: bool
    tenant: str
    backoff: Backoff | dict[str, Any] | Duration
    cron: str
    every: Duration
    timezone: str
    until: datetime
    key: str


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Validated options of one job; as JSON, what was said."""

    id: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    due: Due = NOW
    unique_key: str | None = None
    #: The unique key follows from name, tenant and payload.
    dedupe: bool = False
    tenant: str | None = None
    stored: JobOptions = NO_OPTIONS
    recurrence: Recurrence | None = None


NO_OPTIONS_GIVEN = Options()


def enqueue_options(given: dict[str, Any], base: Options = NO_OPTIONS_GIVEN) -> Options:
    """Options of one job, on top of what its handler says."""
    if not given:
        return base
    _known(given, EnqueueOptions)
    if callable(given.get("backoff")):
        raise InvalidValue(
            "backoff", "a Backoff, a dict or a duration", given["backoff"], "a function can only be said of a handler"
        )
    said: dict[str, Any] = {"stored": _stored(given, base.stored)}
    checks: dict[str, Callable[[Any], Any]] = {
        "id": limits.check_id,
        "queue": limits.check_queue,
        "priority": limits.check_priority,
        "unique_key": limits.check_unique_key,
        "dedupe": lambda value: limits.check_bool(value, "dedupe"),
        "tenant": limits.check_tenant,
    }
    for field, check in checks.items():
        if given.get(field) is not None:
            said[field] = check(given[field])
    said["due"] = _due(given)
    if said.get("dedupe"):
        _alone(given)
    rule = _recurrence(given)
    if rule is not None:
        if said.get("unique_key") not in (None, rule.key):
            raise InvalidValue(
                "unique_key", "none beside a recurrence (its key is its unique key)", given["unique_key"]
            )
        said["recurrence"] = rule
        said["unique_key"] = rule.key
    return structs.replace(base, **said)


def handler_options(given: dict[str, Any]) -> Options:
    """What a handler says about all its jobs; name, isolate, concurrency and a backoff function are not stored."""
    _known(given, HandlerOptions)
    said: dict[str, Any] = {"stored": _stored(given, NO_OPTIONS)}
    if "queue" in given:
        said["queue"] = limits.check_queue(given["queue"])
    if "priority" in given:
        said["priority"] = limits.check_priority(given["priority"])
    return Options(**said)


def _stored(given: dict[str, Any], base: JobOptions) -> JobOptions:
    said: dict[str, Any] = {}
    for field in ("max_attempts", "max_crashes"):
        if given.get(field) is not None:
            said[field] = limits.check_int(given[field], field, 1, 2**31 - 1)
    if given.get("backoff") is not None and not callable(given["backoff"]):
        said["backoff"] = backoff(given["backoff"])
    if "timeout" in given:
        # None is said too: no timeout, whatever the handler says.
        said["timeout_ms"] = 0 if given["timeout"] is None else to_ms(given["timeout"], "timeout", least=1)
    for field in ("keep_succeeded", "keep_failed"):
        if given.get(field) is not None:
            kept: Keep = limits.keep(given[field], field)
            said[field] = kept
    return structs.replace(base, **said) if said else base


def _due(given: dict[str, Any]) -> Due:
    delay, due_at = given.get("delay"), given.get("due_at")
    if delay is not None and due_at is not None:
        raise InvalidValue("due_at", "either delay or due_at, not both", due_at)
    if due_at is not None:
        return at(instant_ms(due_at, "due_at"))
    return NOW if delay is None else after(to_ms(delay, "delay"))


def _alone(given: dict[str, Any]) -> None:
    """What dedupe=True stands for cannot be said in another way as well."""
    for field in ("unique_key", "cron", "every"):
        if given.get(field) is not None:
            advice = "" if field == "unique_key" else "a recurring job is known by its key"
            raise InvalidValue("dedupe", f"either dedupe or {field}, not both", True, advice)


def _recurrence(given: dict[str, Any]) -> Recurrence | None:
    if given.get("cron") is None and given.get("every") is None:
        for field in ("timezone", "until", "key"):
            if given.get(field) is not None:
                raise InvalidValue(field, "it only together with cron or every", given[field])
        return None
    if given.get("cron") is not None and given.get("every") is not None:
        raise InvalidValue("cron", "either cron or every, not both", given["cron"])
    key = given.get("unique_key") if given.get("key") is None else given["key"]
    if key is None:
        raise InvalidValue("key", "a key by which the recurring job is known", None, 'for example key="monday-mail"')
    return recurrence(
        key=limits.check_unique_key(key, "key"),
        cron=given.get("cron"),
        every_ms=None if given.get("every") is None else to_ms(given["every"], "every", least=1),
        timezone="UTC" if given.get("timezone") is None else given["timezone"],
        until_ms=None if given.get("until") is None else instant_ms(given["until"], "until"),
    )


def _known(given: dict[str, Any], kind: type) -> None:
    known = kind.__annotations__.keys() | CommonOptions.__annotations__.keys()
    for option in given:
        if option not in known:
            raise InvalidValue(option, "one of the options " + ", ".join(sorted(known)), option)
