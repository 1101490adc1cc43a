"""Errors as Node writes them: the message alone, without the type."""

from __future__ import annotations

import re


def message_of(error: str, traceback: str | None) -> str:
    """The message of a handler's error without its type; the whole text if the traceback shows no type."""
    _, _, message = error.partition(": ")
    first_line = re.escape(error.partition("\n")[0])
    is_typed = message and traceback and re.search(rf"(?:^|[\n.]){first_line}", traceback)
    return message if is_typed else error
