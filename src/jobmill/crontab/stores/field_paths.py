"""Paths of fields in a document, such as cron.sleepUntil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobmill.errors import InvalidValue


class FieldPath:
    """A path with dots; a number in it is an index of a list."""

    def __init__(self, text: str, field: str) -> None:
        if not _is_path(text):
            raise InvalidValue(field, "the path of a field, such as cron.sleepUntil", text)
        self.text = text
        self._steps = steps = text.split(".")
        #: The path itself and its prefixes, without the prefixes that name a list.
        self.parents = tuple(
            ".".join(steps[: n + 1]) for n in range(len(steps)) if n + 1 == len(steps) or not steps[n + 1].isdecimal()
        )
        #: The path for a projection: a projection cannot have the index of a list.
        first = next((n for n, step in enumerate(steps) if n and step.isdecimal()), len(steps))
        self.projected = ".".join(steps[:first])

    def pick(self, document: Any) -> Any:
        """The value at the path; None if there is none."""
        for step in self._steps:
            document = _at(document, step)
        return document

    def put(self, document: Any, value: Any) -> Any:
        """Set the value at the path; returns the document."""
        *steps, last = self._steps
        parent = document
        for step in steps:
            parent = _at(parent, step)
        parent[int(last) if isinstance(parent, Sequence) else last] = value
        return document


def _is_path(text: object) -> bool:
    return isinstance(text, str) and "\0" not in text and "" not in text.split(".") and not text.startswith("$")


def _at(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, Sequence) and not isinstance(value, str) and step.isdecimal() and int(step) < len(value):
        return value[int(step)]
    return None
