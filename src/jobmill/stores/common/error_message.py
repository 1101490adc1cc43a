"""Errors as Node writes them: the message alone, without the type."""

from __future__ import annotations

import re


def message_of(error: str, traceback: str | None) -> str:
    """The message of a handler's error; the whole text if its traceback does not show that it has a type."""
    _, _, message = error.partition(": ")
    first_line = re.escape(error.partition("\n")[0])
    is_typed = message and traceback and re.search(rf"(?:^|[\n.]){first_line}", traceback)
    return message if is_typed else error
