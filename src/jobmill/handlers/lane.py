"""The lane of a job, which a function of its handler makes from the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jobmill.core.limits import check_lane
from jobmill.errors import InvalidValue
from jobmill.handlers.signature import Arguments

#: Gets those arguments of the handler that it names as parameters. None: the job has no lane.
LaneFunction: TypeAlias = Callable[..., str | None]


class LaneFromArguments:
    """Makes the lane of a job from its arguments."""

    def __init__(self, handler: str, function: LaneFunction, arguments: Arguments) -> None:
        self._handler = handler
        self._function = function
        self._arguments = arguments
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise InvalidValue("lane", "a function with a signature", function) from None
        if inspect.iscoroutinefunction(function):
            raise InvalidValue("lane", "a text, or a function that is not async", function)
        self._takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self._names = [one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        self._required = [one.name for one in parameters if one.name in self._names and one.default is one.empty]
        by_position = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
        if not self._takes_all:
            by_position += [f"*{one.name}" for one in parameters if one.kind is one.VAR_POSITIONAL]
        unknown = by_position or [one for one in self._required if not arguments.may_have(one)]
        if unknown:
            advice = f"its parameter {unknown[0]!r} is none of them"
            raise InvalidValue("lane", self._expected(), function, advice)

    def _expected(self) -> str:
        known = ", ".join(self._arguments.names) or "it has none"
        return f"a text, or a function with parameters of the handler {self._handler!r}: {known}"

    def __call__(self, arguments: Mapping[str, Any]) -> str | None:
        """The lane of a job with these arguments, which may lack those that are results of other drafts."""
        for name in self._required:
            if name not in arguments:
                advice = f"give a text: {self._handler}.options(lane=…).draft(…)"
                raise InvalidValue("lane", f"a value of {name!r} that is known when the job is enqueued", None, advice)
        taken = arguments if self._takes_all else {name: arguments[name] for name in self._names if name in arguments}
        try:
            lane = self._function(**taken)
        except Exception as error:
            expected = f"a lane from the function lane= of the handler {self._handler!r}"
            raise InvalidValue("lane", expected, f"{type(error).__name__}: {error}") from error
        try:
            return None if lane is None else check_lane(lane)
        except InvalidValue as error:
            advice = f"the function lane= of the handler {self._handler!r} returned it"
            advice += f"; {error.advice}" if error.advice else ""
            raise InvalidValue("lane", f"{error.expected}, or None", lane, advice) from None


def lane_function(given: object) -> LaneFunction | None:
    """The function in the option `lane` of a handler, which may be a text as well."""
    if given is None or isinstance(given, str):
        return None
    if not callable(given):
        raise InvalidValue("lane", "a text, or a function of the handler's arguments", given)
    return given
