"""The nearest of the known names, for messages about a name that is probably misspelled."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most similar; None if none is similar enough."""
    # Here, because most processes never need it, and it takes 0.2 MB.
    import difflib

    return next(iter(difflib.get_close_matches(name, sorted(known), 1, cutoff)), None)
