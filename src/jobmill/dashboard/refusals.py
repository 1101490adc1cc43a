"""Why jobs are left as they are, grouped: equal reasons are one sentence with a count and a few ids."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from jobmill.core.changes import key_taken

#: A sentence names at most this many jobs.
NAMED: Final = 3
_KEY_TAKEN: Final = tuple(key_taken("\0").split("\0"))
KEY_TAKEN: Final = "a live job has the same unique key"


class RefusalGroup(Struct, frozen=True, kw_only=True):
    """Jobs that are left as they are for the same reason; `ids` names a few of them."""

    reason: str
    count: int
    ids: list[str]

    @property
    def why(self) -> str:
        """The reason, about one job or several."""
        is_one = self.count == 1
        text = self.reason.replace("the job is", "it is" if is_one else "they are", 1)
        more = self.count - len(self.ids)
        named = ", ".join(self.ids) + (f" and {more:,} more" if more else "")
        return f"{text} ({named})" if self.ids else text

    @property
    def sentence(self) -> str:
        """What was not done, and why."""
        left = "1 job was left as it is" if self.count == 1 else f"{self.count:,} jobs were left as they are"
        return f"{left}: {self.why}."


class Refusals:
    """Collects refusals, in little memory for any number of them."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, list[str]]] = {}

    def add(self, refused: dict[str, str]) -> None:
        """Jobs by id, and why each was refused."""
        for id, why in refused.items():
            self.add_count(_kind(why), 1, [id])

    def add_count(self, reason: str, count: int, ids: list[str] | None = None) -> None:
        """Several jobs with one reason."""
        if count:
            known, named = self._groups.get(reason, (0, []))
            self._groups[reason] = (known + count, (named + (ids or []))[:NAMED])

    @property
    def count(self) -> int:
        """How many jobs were refused."""
        return sum(count for count, _ in self._groups.values())

    @property
    def groups(self) -> list[RefusalGroup]:
        """One for each reason, the most frequent first."""
        found = sorted(self._groups.items(), key=lambda one: -one[1][0])
        return [RefusalGroup(reason=reason, count=count, ids=ids) for reason, (count, ids) in found]


def _kind(why: str) -> str:
    begin, end = _KEY_TAKEN
    return KEY_TAKEN if why.startswith(begin) and why.endswith(end) else why
