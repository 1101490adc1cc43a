"""Errors as Node writes them: the message alone, without the type."""

from __future__ import annotations

import re
from collections.abc import Sequence


def message_of(error: str, tracebacks: Sequence[str]) -> str:
    """The message of a handler's error; the whole text if its last traceback does not show that it has a type."""
    _, _, message = error.partition(": ")
    first_line = re.escape(error.partition("\n")[0])
    is_typed = message and tracebacks and re.search(rf"(?:^|[\n.]){first_line}", tracebacks[-1])
    return message if is_typed else error
