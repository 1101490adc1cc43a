"""A field of a document, named by a path that may have dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobmill.errors import InvalidValue


class Path:
    """`cron.sleepUntil`; a number is a place in a list."""

    __slots__ = ("_last", "_steps", "parents", "projected", "text")

    def __init__(self, text: str, field: str) -> None:
        if not _is_path(text):
            raise InvalidValue(field, "the path of a field, such as cron.sleepUntil", text)
        self.text = text
        *self._steps, self._last = text.split(".")
        #: The path itself and what leads to it, without those that are meant to be lists.
        steps = text.split(".")
        self.parents = tuple(
            ".".join(steps[: n + 1]) for n in range(len(steps)) if n + 1 == len(steps) or not steps[n + 1].isdecimal()
        )
        #: What to ask for, to have what is there: a place in a list cannot be asked for.
        first = next((n for n, step in enumerate(steps) if n and step.isdecimal()), len(steps))
        self.projected = ".".join(steps[:first])

    def pick(self, document: Any) -> Any:
        """What is there; None where nothing is."""
        for step in (*self._steps, self._last):
            document = _at(document, step)
        return document

    def put(self, document: Any, value: Any) -> Any:
        """The same document with this there, where the path leads to."""
        place = document
        for step in self._steps:
            place = _at(place, step)
        if isinstance(place, Sequence):
            place[int(self._last)] = value  # type: ignore[index]  # a list that BSON was read into
        else:
            place[self._last] = value
        return document


def _is_path(text: object) -> bool:
    return isinstance(text, str) and "\0" not in text and "" not in text.split(".") and not text.startswith("$")


def _at(place: Any, step: str) -> Any:
    if isinstance(place, Mapping):
        return place.get(step)
    if isinstance(place, Sequence) and not isinstance(place, str) and step.isdecimal() and int(step) < len(place):
        return place[int(step)]
    return None
