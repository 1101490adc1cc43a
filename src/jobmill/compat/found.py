"""What the readers of other systems return: a job to import, or why it cannot be imported."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from jobmill.core.limits import check_id
from jobmill.errors import InvalidValue


class ForeignJob(Struct, frozen=True, kw_only=True):
    """A job that waits in another system."""

    #: "celery", "rq" or "arq".
    system: str
    #: Its id there.
    id: str
    queue: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    due_ms: int | None = None
    priority: int = 0
    max_attempts: int | None = None
    backoff_ms: int | None = None
    timeout_ms: int | None = None
    expires_ms: int | None = None
    #: A worker of the other system has it, or had it when it was killed.
    unacknowledged: bool = False


class NotImportable(Exception):
    """A job of another system that cannot be imported. The reason has no value of the job, which may be a secret."""

    def __init__(self, reason: str, id: str = "?") -> None:
        self.reason = reason
        self.id = id
        super().__init__(reason)


def id_for(system: str, id: str) -> str:
    """The id of the imported job: the same one, or, where Jobmill refuses it, one that is made from it."""
    try:
        return check_id(id)
    except InvalidValue:
        return f"{system}-{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def expect(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """The value, if it is of this type."""
    if isinstance(value, bool) or not isinstance(value, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise NotImportable(f"damaged: {what} is of type {type(value).__name__}, expected {names}")
    return value


def expect_arguments(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position and by name."""
    named = expect(kwargs, dict, "kwargs")
    if not all(isinstance(name, str) for name in named):
        raise NotImportable("damaged: a name in kwargs is not a text")
    return list(expect(args, (list, tuple), "args")), named


def expect_instant(value: Any, what: str) -> int | None:
    """An instant in ISO 8601, which is UTC where it does not say; as milliseconds."""
    if value in (None, ""):
        return None
    try:
        at = datetime.fromisoformat(expect(value, str, what))
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise NotImportable(f"damaged: {what} is not a time in ISO 8601") from None


def seconds_to_ms(value: Any, what: str) -> int:
    """A number of seconds as milliseconds."""
    try:
        return round(float(expect(value, (int, float), what)) * 1000)
    except (ValueError, OverflowError):
        raise NotImportable(f"damaged: {what} is not a finite number") from None
