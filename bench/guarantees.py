"""What becomes of running jobs after kill -9, in one word, to stand beside each figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bench.draws import OURS
from bench.draws_across import STORES, split
from bench.peers.about import About

HEAD = "after kill -9"
UNKNOWN = "–"
#: A measure on files has no name of a store before it.
FILES = "sqlite"

#: By the name of a store, by the name of a contender, the first word of its guarantee.
Words = Mapping[str, Mapping[str, str]]


def words(contenders: Iterable[About]) -> dict[str, str]:
    """Of the contenders on one store."""
    return {
        OURS if one.package == OURS else one.name: one.guarantee.partition(":")[0].partition(" ")[0]
        for one in contenders
    }


def beside(known: Words, measure: str, who: str) -> str:
    """The word for whoever stands in a row of a measure's table; a variant has that of its program."""
    name, title = split(who)
    store = STORES[title] if title else measure.rpartition(" ")[0] or FILES
    there = known.get(store, {})
    alike = (word for other, word in there.items() if _program(other) == _program(name))
    return there.get(name) or next(alike, UNKNOWN)


def _program(name: str) -> str:
    return name.partition(",")[0]
