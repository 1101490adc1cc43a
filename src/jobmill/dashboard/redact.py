"""Hides values: those of fields with certain names from everybody, all values from visitors who may not see them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

from msgspec import Struct, structs

from jobmill.core.job import Attempt, Job
from jobmill.dashboard.shown import HIDDEN
from jobmill.errors import InvalidValue
from jobmill.handlers.handler import Handler


class Redact:
    """Field names whose values nobody sees, such as "password" or "*token*", in any depth; upper and lower case."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        if isinstance(patterns, str):
            raise InvalidValue("redact", 'several names, such as ("password", "*token*")', patterns)
        parts = [f"(?:{fnmatch.translate(one.lower())})" for one in patterns]
        self._fields = re.compile("|".join(parts)) if parts else None

    def value(self, value: Any, *, all: bool = False) -> Any:
        """A JSON value with hidden fields; with `all`, only the names of fields are left."""
        if isinstance(value, _Argument):
            return HIDDEN if self._is_secret(value) else self.value(value.value, all=all)
        if isinstance(value, dict):
            return {key: HIDDEN if self._is_hidden(key) else self.value(one, all=all) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, all=all) for one in value]
        return HIDDEN if all and value is not None else value

    def by_name(self, payload: Any, handler: Handler[..., Any] | None) -> Any:
        """A payload whose positional arguments are fields with the names of their parameters, to hide them as such.

        Where the names are not known, no name can say that a value is harmless: all of them are hidden.
        """
        if self._fields is None or not _is_call(payload, handler):
            return payload
        names = () if handler is None else handler.positional
        args = [_Argument(name, one) for name, one in zip(_endless(names), payload["args"], strict=False)]
        return payload | {"args": args}

    def count(self, value: Any) -> int:
        """How many values of this JSON value are hidden fields."""
        if isinstance(value, _Argument):
            return 1 if self._is_secret(value) else self.count(value.value)
        if isinstance(value, dict):
            return sum(1 if self._is_hidden(key) else self.count(one) for key, one in value.items())
        return sum(self.count(one) for one in value) if isinstance(value, list) else 0

    def _is_secret(self, argument: _Argument) -> bool:
        return argument.name is None or self._is_hidden(argument.name)

    def _is_hidden(self, key: str) -> bool:
        return self._fields is not None and self._fields.match(key.lower()) is not None


class _Argument(Struct):
    """A positional argument, with the name of its parameter if that is known."""

    name: str | None
    value: Any


def _is_call(payload: Any, handler: Handler[..., Any] | None) -> bool:
    """Whether a payload has arguments by position, as those of Django's and Celery's tasks have."""
    is_alike = isinstance(payload, dict) and payload.keys() <= {"args", "kwargs"}
    return is_alike and isinstance(payload.get("args"), list) and (handler is None or handler.takes_calls)


def _endless(names: tuple[str, ...]) -> Iterator[str | None]:
    """The names of all positions: a last name with a star is that of all the rest."""
    rest = names[-1][1:] if names and names[-1].startswith("*") else None
    return chain(names if rest is None else names[:-1], repeat(rest))


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
