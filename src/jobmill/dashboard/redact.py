"""Hides values: those of fields with certain names from everybody, all values from visitors who may not see them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from jobmill.core.job import Attempt, Job
from jobmill.dashboard.shown import HIDDEN
from jobmill.errors import InvalidValue


class Redact:
    """Field names whose values nobody sees, such as "password" or "*token*", in any depth; upper and lower case."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        if isinstance(patterns, str):
            raise InvalidValue("redact", 'several names, such as ("password", "*token*")', patterns)
        parts = [f"(?:{fnmatch.translate(one.lower())})" for one in patterns]
        self._fields = re.compile("|".join(parts)) if parts else None

    def value(self, value: Any, *, all: bool = False) -> Any:
        """A JSON value with hidden fields; with `all`, only the names of fields are left."""
        if isinstance(value, dict):
            return {key: HIDDEN if self._is_hidden(key) else self.value(one, all=all) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, all=all) for one in value]
        return HIDDEN if all and value is not None else value

    def count(self, value: Any) -> int:
        """How many values of this JSON value are hidden fields."""
        if isinstance(value, dict):
            return sum(1 if self._is_hidden(key) else self.count(one) for key, one in value.items())
        return sum(self.count(one) for one in value) if isinstance(value, list) else 0

    def _is_hidden(self, key: str) -> bool:
        return self._fields is not None and self._fields.match(key.lower()) is not None


def hidden_errors(job: Job) -> Job:
    """A job without the texts of its errors, which often repeat a payload."""
    attempts = tuple(
        structs.replace(one, error=_hidden(one.error), traceback=_hidden(one.traceback)) for one in job.attempts
    )
    changed: tuple[Attempt, ...] = attempts
    progress = job.progress and structs.replace(job.progress, message=_hidden(job.progress.message))
    return structs.replace(
        job, error=_hidden(job.error), last_error=_hidden(job.last_error), attempts=changed, progress=progress
    )


def _hidden(text: str | None) -> str | None:
    return None if text is None else HIDDEN
