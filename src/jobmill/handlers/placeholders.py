"""Results of other jobs as arguments: placeholders in a draft, and the values that take their place before a run.

In a payload a placeholder is an object with one key: {"$result": 2} is what the dependency with the number 2 returned,
{"$results": [2, 3]} are the results of three dependencies from number 2 on. "$outcome" and "$outcomes" are how they
ended. In such a payload, an object of the caller that looks alike gets one "$" more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from jobmill.core.flows import Dependency, is_bad
from jobmill.errors import DependencyFailed, JobNotFound

R = TypeVar("R", covariant=True)

Kind: TypeAlias = Literal["$result", "$outcome", "$results", "$outcomes"]
KINDS: Final = ("$result", "$outcome", "$results", "$outcomes")


class JobOutcome(Struct, Generic[R], frozen=True, kw_only=True):
    """How a job ended that this job has waited for. `value` is what it returned."""

    id: str
    state: Literal["succeeded", "failed", "cancelled"]
    #: The first line of its error; None if it succeeded or was cancelled.
    error: str | None = None
    result: R | None = None

    @property
    def ok(self) -> bool:
        """Whether the job succeeded."""
        return self.state == "succeeded"

    @property
    def value(self) -> R:
        """What the job returned; raises DependencyFailed if it did not succeed."""
        if not self.ok:
            raise DependencyFailed(f"job {self.id} {'failed: ' + (self.error or '') if self.error else self.state}")
        return self.result  # type: ignore[return-value]  # None is what it returned


class Placeholder:
    """Stands for the result or the outcome of a draft or a group. `source` is that draft or group."""

    __slots__ = ("kind", "source")

    def __init__(self, source: Any, kind: Kind) -> None:
        self.source = source
        self.kind: Kind = kind

    def __repr__(self) -> str:
        """What it stands for."""
        return f"<{self.kind[1:]} of {self.source!r}>"

    def __bool__(self) -> bool:
        """Refused: the value is not known yet."""
        raise TypeError(f"{self!r} is not known before the job has run: only handlers can use it")

    __iter__ = __len__ = __bool__


class FoundPlaceholder(Exception):
    """Arguments contain a placeholder."""


def has_placeholder(value: Any) -> bool:
    """Whether a value is a placeholder, or a list or dict with one inside."""
    if isinstance(value, Placeholder):
        return True
    if isinstance(value, dict):
        return any(map(has_placeholder, value.values()))
    return isinstance(value, list | tuple) and any(map(has_placeholder, value))


def with_markers(value: Any, mark: Callable[[Placeholder], Any], plain: Callable[[Any], Any]) -> Any:
    """A value with an object of JSON for each placeholder. `plain` converts the other values."""
    if isinstance(value, Placeholder):
        return {value.kind: mark(value)}
    if isinstance(value, dict):
        marked = {key: with_markers(item, mark, plain) for key, item in value.items()}
        return {f"${key}": item for key, item in marked.items()} if _is_alike(value) else marked
    if isinstance(value, list | tuple):
        return [with_markers(item, mark, plain) for item in value]
    return plain(value)


def _is_alike(value: dict[Any, Any]) -> bool:
    """Whether an object of the caller looks like a placeholder, or like one with more "$"."""
    key = next(iter(value)) if len(value) == 1 else None
    return isinstance(key, str) and key.startswith("$") and f"${key.lstrip('$')}" in KINDS


def filled(payload: Raw, dependencies: Sequence[Dependency]) -> Raw:
    """A payload with the results of the dependencies, by their numbers, in the place of its placeholders."""
    return Raw(msgspec.json.encode(_filled(msgspec.json.decode(payload), dependencies)))


def _filled(value: Any, dependencies: Sequence[Dependency]) -> Any:
    if isinstance(value, list):
        return [_filled(item, dependencies) for item in value]
    if not isinstance(value, dict):
        return value
    if _is_alike(value):
        ((key, item),) = value.items()
        if key not in KINDS:
            return {key[1:]: _filled(item, dependencies)}
        read = _result if key.startswith("$result") else _outcome
        if key.endswith("s"):
            first, count = item
            return [read(edge) for edge in dependencies[first : first + count]]
        return read(dependencies[item])
    return {key: _filled(item, dependencies) for key, item in value.items()}


def _result(edge: Dependency) -> Raw:
    if edge.result_json is None:
        if is_bad(edge.state):
            raise DependencyFailed(f"dependency {edge.id} {edge.state}" + (f": {edge.error}" if edge.error else ""))
        raise JobNotFound(f"the result of dependency {edge.id} is not in the store: it was removed, or runs again")
    return edge.result_json


def _outcome(edge: Dependency) -> dict[str, Any]:
    outcome: dict[str, Any] = {"id": edge.id, "state": edge.state, "error": edge.error}
    return outcome | ({"result": _result(edge)} if edge.state == "succeeded" else {})
