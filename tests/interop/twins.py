"""One step at a time, done by Node at one place and by us at another; after each, every key is compared."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jobmill.testing import ManualClock
from tests.interop.golden import by_job, differences, dump
from tests.interop.node_side import NodeSide
from tests.interop.our_side import OurSide


class Twins:
    """`await both.add("a", delay=5_000)` is one step; what it answers must be the same as well."""

    def __init__(self, node: NodeSide, ours: OurSide, clock: ManualClock, meant: Mapping[str, str]) -> None:
        self.node = node
        self.ours = ours
        self.clock = clock
        self.steps: list[str] = []
        self.events_by_job = False
        #: Differences with a good reason, by a pattern of the lines that tell them; those that were met.
        self.meant = meant
        self.met: set[str] = set()

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        """A step that both sides know."""
        if verb.startswith("_"):
            raise AttributeError(verb)

        async def step(*args: Any, **about: Any) -> Any:
            answer = await self.unseen(verb, *args, **about)
            await self.compare()
            return answer

        return step

    async def unseen(self, verb: str, *args: Any, **about: Any) -> Any:
        """A step after which the sides may still differ, because one of them does the rest in the next."""
        said = [*map(repr, args), *(f"{name}={value!r}" for name, value in about.items())]
        self.steps.append(f"{verb}({', '.join(said)})")
        golden = await getattr(self.node, verb)(*args, **about)
        answer = await getattr(self.ours, verb)(*args, **about)
        assert _shown(golden) == _shown(answer), f"{self._story()}\nNode answered {golden!r}, ours {answer!r}"
        return answer

    async def lose(self, *ids: str, queue: str = "mail") -> None:
        """The locks of these jobs end, 20 s later, as when their worker died."""
        for side in (self.node, self.ours):
            await side.redis.delete(*(f"{side.prefix}:{queue}:{id}:lock" for id in ids))
        await self.later(20)

    async def later(self, seconds: float) -> None:
        """Time passes for both."""
        self.steps.append(f"{seconds:g} s later")
        self.clock.advance(seconds)

    async def compare(self) -> None:
        """Fail with all that differs and is not meant to."""
        golden, ours = [await dump(side.redis, side.prefix) for side in (self.node, self.ours)]
        if self.events_by_job:
            golden, ours = by_job(golden), by_job(ours)
        wrong = []
        for key, lines in differences(golden, ours).items():
            left = [line for line in lines if not self._is_meant(f"{key} {line}")]
            wrong += [f"{key}: {line}" for line in left]
        assert not wrong, "\n".join([self._story(), *wrong])

    def _is_meant(self, line: str) -> bool:
        found = {pattern for pattern in self.meant if re.search(pattern, line)}
        self.met |= found
        return bool(found)

    def _story(self) -> str:
        return "after " + ", ".join(self.steps)


def _shown(answer: Any) -> Any:
    """Answers as they are, but for runs of a scheduler: Node's ids name the slot, ours the scheduler."""
    if isinstance(answer, list):
        return [_shown(one) for one in answer]
    return re.sub(r"^(repeat:.*):\d{13}$", r"\1", answer) if isinstance(answer, str) else answer
