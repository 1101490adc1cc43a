"""A Lua script, known to the server by its hash."""

from __future__ import annotations

from hashlib import sha1


class Script:
    """What `Link.run` runs."""

    __slots__ = ("sha", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        #: As the server counts it: SCRIPT LOAD need not be asked.
        self.sha = sha1(source.encode(), usedforsecurity=False).hexdigest()
