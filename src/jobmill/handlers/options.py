"""Options of handlers and jobs: `HandlerOptions` and `EnqueueOptions` as users write them, validated into `Options`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from msgspec import Struct, structs

from jobmill.core import limits
from jobmill.core.due import NEVER_MS
from jobmill.core.durations import Duration, instant_ms, to_ms
from jobmill.core.job import NO_OPTIONS, JobOptions, Keep
from jobmill.core.nearest import nearest
from jobmill.core.recurrence import Recurrence, recurrence
from jobmill.core.retry import Backoff, backoff
from jobmill.core.unique_policy import UniquePolicy, WhenLive
from jobmill.core.values import NOW, Due, after, at
from jobmill.errors import InvalidValue

DEFAULT_QUEUE = "default"
#: Options that say what happens if a unique key is taken.
POLICIES = ("unique_for", "debounce", "when_live")

#: A backoff function of the user. It gets the number of the attempt and the error, and returns a duration, or None if
#: there must be no retry.
BackoffFunction: TypeAlias = Callable[[int, BaseException], Duration | None]
#: `True`: a process of its own for each attempt. "pool": processes that are used again. "spawn": a new interpreter.
Isolate: TypeAlias = bool | Literal["pool", "spawn"]
#: One class of exceptions, or several.
ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class CommonOptions(TypedDict, total=False):
    """Options of a handler and of a single job."""

    queue: str
    priority: int
    max_attempts: int
    max_crashes: int
    timeout: Duration | None
    keep_succeeded: bool | int | str | timedelta | Keep
    keep_failed: bool | int | str | timedelta | Keep


class HandlerOptions(CommonOptions, total=False):
    """Options of a handler."""

    name: str
    backoff: Backoff | dict[str, Any] | Duration | BackoffFunction
    isolate: Isolate
    concurrency: int
    keep_result: bool
    retry_on: ErrorTypes
    fail_on: ErrorTypes
    #: A text, or a function that makes one from arguments of the handler.
    lane: str | Callable[..., str | None]
    cron: str
    every: Duration
    timezone: str
    key: str


class EnqueueOptions(CommonOptions, total=False):
    """Options of a single job."""

    id: str
    delay: Duration
    due_at: datetime
    unique_key: str
    dedupe: bool
    unique_for: Duration
    debounce: Duration
    when_live: WhenLive
    tenant: str
    lane: str
    headers: dict[str, str]
    backoff: Backoff | dict[str, Any] | Duration
    cron: str
    every: Duration
    timezone: str
    until: datetime
    key: str


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Validated options of one job. Its JSON has only the options that were given."""

    id: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    due: Due = NOW
    unique_key: str | None = None
    #: The unique key is computed from name, tenant and payload.
    dedupe: bool = False
    #: What happens if the unique key is taken.
    policy: UniquePolicy | None = None
    tenant: str | None = None
    lane: str | None = None
    stored: JobOptions = NO_OPTIONS
    recurrence: Recurrence | None = None


NO_OPTIONS_GIVEN = Options()


def enqueue_options(given: dict[str, Any], base: Options = NO_OPTIONS_GIVEN) -> Options:
    """The options of one job. Options that are given for the job replace the options of its handler (`base`)."""
    if not given:
        return base
    _check_names(given, EnqueueOptions)
    # None means that an option is not given, except that a job with timeout=None has no timeout.
    given = {option: value for option, value in given.items() if value is not None or option == "timeout"}
    if callable(given.get("backoff")):
        advice = "only a handler can have a backoff function"
        raise InvalidValue("backoff", "a Backoff, a dict or a duration", given["backoff"], advice)
    if callable(given.get("lane")):
        raise InvalidValue("lane", "a text", given["lane"], "only a handler can have a function for it")
    options: dict[str, Any] = {"stored": _stored(given, base.stored), "due": _due(given)}
    checks: dict[str, Callable[[Any], Any]] = {
        "id": limits.check_id,
        "queue": limits.check_queue,
        "priority": limits.check_priority,
        "unique_key": limits.check_unique_key,
        "dedupe": lambda value: limits.check_bool(value, "dedupe"),
        "tenant": limits.check_tenant,
        "lane": limits.check_lane,
    }
    for field, check in checks.items():
        if field in given:
            options[field] = check(given[field])
    if options.get("dedupe"):
        _check_dedupe(given)
    has_key = options.get("unique_key", base.unique_key) is not None or options.get("dedupe", base.dedupe)
    options |= _policy(given, has_key=has_key)
    rule = _recurrence(given)
    if rule is not None:
        if options.get("unique_key") not in (None, rule.key):
            raise InvalidValue(
                "unique_key", "none beside a recurrence (its key is its unique key)", given["unique_key"]
            )
        options["recurrence"] = rule
        options["unique_key"] = rule.key
    return structs.replace(base, **options)


def handler_options(given: dict[str, Any]) -> Options:
    """The options that a handler's jobs store. The others, such as `isolate`, are for the worker only."""
    _check_names(given, HandlerOptions)
    options: dict[str, Any] = {"stored": _stored(given, NO_OPTIONS)}
    if "queue" in given:
        options["queue"] = limits.check_queue(given["queue"])
    if "priority" in given:
        options["priority"] = limits.check_priority(given["priority"])
    if isinstance(given.get("lane"), str):
        options["lane"] = limits.check_lane(given["lane"])
    return Options(**options)


def declared_options(given: dict[str, Any], name: str, base: Options) -> Options | None:
    """The options of the recurring job that a handler declares with `cron` or `every`; None if it declares none.

    Beside queue, priority and lane, the job stores no options of the handler (`base`): it follows those that its
    handler has when it runs.
    """
    given = {option: given[option] for option in ("cron", "every", "timezone", "key") if given.get(option) is not None}
    if "cron" in given or "every" in given:
        given.setdefault("key", name)
    if (rule := _recurrence(given)) is None:
        return None
    rule = structs.replace(rule, declared=True)
    return Options(queue=base.queue, priority=base.priority, lane=base.lane, unique_key=rule.key, recurrence=rule)


def isolate_mode(given: Any) -> Isolate:
    """Whether and how attempts run in separate processes."""
    if not isinstance(given, bool) and given not in ("pool", "spawn"):
        raise InvalidValue("isolate", 'True, False, "pool" or "spawn"', given)
    mode: Isolate = given
    return mode


def error_types(given: Any, field: str) -> tuple[type[BaseException], ...]:
    """Classes of exceptions, given as one or as a tuple."""
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidValue(field, "an exception class, or a tuple of them", given)
    return kinds


def _stored(given: dict[str, Any], base: JobOptions) -> JobOptions:
    options: dict[str, Any] = {}
    for field in ("max_attempts", "max_crashes"):
        if given.get(field) is not None:
            options[field] = limits.check_int(given[field], field, 1, limits.MAX_ATTEMPTS)
    if given.get("backoff") is not None and not callable(given["backoff"]):
        options["backoff"] = backoff(given["backoff"])
    if "timeout" in given:
        # None means that the job has no timeout, even if its handler has one.
        options["timeout_ms"] = 0 if given["timeout"] is None else to_ms(given["timeout"], "timeout", least=1)
    for field in ("keep_succeeded", "keep_failed"):
        if given.get(field) is not None:
            options[field] = limits.keep(given[field], field)
    if given.get("headers"):
        options["headers"] = limits.check_headers(given["headers"])
    return structs.replace(base, **options) if options else base


def _due(given: dict[str, Any]) -> Due:
    if "due_at" in given:
        if "delay" in given:
            raise InvalidValue("due_at", "either delay or due_at, not both", given["due_at"])
        due_ms = instant_ms(given["due_at"], "due_at")
        if due_ms >= NEVER_MS:
            raise InvalidValue("due_at", "a datetime before the year 9999", given["due_at"])
        return at(due_ms)
    return after(to_ms(given["delay"], "delay")) if "delay" in given else NOW


def _check_dedupe(given: dict[str, Any]) -> None:
    """dedupe=True cannot be combined with another source of the unique key."""
    for field in ("unique_key", "cron", "every"):
        if field in given:
            advice = "" if field == "unique_key" else "a recurring job has a key already"
            raise InvalidValue("dedupe", f"either dedupe or {field}, not both", True, advice)


def _policy(given: dict[str, Any], *, has_key: bool) -> dict[str, Any]:
    """The policy of the unique key, and the due time that it needs. There is one policy at most."""
    fields = [field for field in POLICIES if field in given]
    if not fields:
        return {}
    field, *others = fields
    value = given[field]
    for other in others:
        raise InvalidValue(other, f"either {field} or {other}, not both", given[other])
    if not has_key:
        raise InvalidValue(field, f"{field} only together with unique_key or dedupe", value)
    for other in ("cron", "every"):
        if other in given:
            raise InvalidValue(field, f"either {field} or {other}, not both", value, "a recurring job has one live job")
    if field == "unique_for":
        return {"policy": UniquePolicy(for_ms=to_ms(value, field, least=1))}
    return _debounce(given) if field == "debounce" else {"policy": _when_live(value)}


def _debounce(given: dict[str, Any]) -> dict[str, Any]:
    for other in ("delay", "due_at"):
        if other in given:
            expected = f"either debounce or {other}, not both"
            raise InvalidValue("debounce", expected, given["debounce"], "a debounce is a delay")
    ms = to_ms(given["debounce"], "debounce", least=1)
    return {"policy": UniquePolicy(debounce_ms=ms), "due": after(ms)}


def _when_live(value: Any) -> UniquePolicy | None:
    if value not in get_args(WhenLive):
        raise InvalidValue("when_live", 'one of "skip", "replace", "cancel"', value)
    return None if value == "skip" else UniquePolicy(when_live=value)


def _recurrence(given: dict[str, Any]) -> Recurrence | None:
    if "cron" not in given and "every" not in given:
        for field in ("timezone", "until", "key"):
            if field in given:
                raise InvalidValue(field, f"{field} only together with cron or every", given[field])
        return None
    if "cron" in given and "every" in given:
        raise InvalidValue("cron", "either cron or every, not both", given["cron"])
    key = given.get("key", given.get("unique_key"))
    if key is None:
        raise InvalidValue("key", "a key that identifies the recurring job", None, 'for example key="monday-mail"')
    return recurrence(
        key=limits.check_unique_key(key, "key"),
        cron=given.get("cron"),
        every_ms=to_ms(given["every"], "every", least=1) if "every" in given else None,
        timezone=given.get("timezone", "UTC"),
        until_ms=instant_ms(given["until"], "until") if "until" in given else None,
    )


#: Options of other systems, and what they are here.
_ELSEWHERE = {
    "countdown": "delay",
    "eta": "due_at",
    "job_id": "id",
    "task_id": "id",
    "max_retries": "max_attempts, which counts the first attempt, too",
    "time_limit": "timeout",
}


def _check_names(given: dict[str, Any], kind: type) -> None:
    known = kind.__annotations__.keys() | CommonOptions.__annotations__.keys()
    for option in given:
        if option not in known:
            # Every call that takes the options of a job also takes `within`, which is not an option of the job.
            named = sorted(known | {"within"} if kind is EnqueueOptions else known)
            near = _ELSEWHERE.get(option) or nearest(option, named, 0.75)
            advice = f"here it is {near}" if near else ""
            raise InvalidValue(option, "one of the options " + ", ".join(named), option, advice)
