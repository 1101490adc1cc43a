"""A Monque process that tests talk to, and what they share with it: a collection."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.interop.monque.monque import Generation
from tests.kit.node import TalkingProcess

ROOT = Path(__file__).parents[3]
COLLECTION = "monque_jobs"


class MonqueProcess(TalkingProcess):
    """`async with MonqueProcess(url, 1) as peer:`; see peer.py for what it may be asked."""

    def __init__(self, url: str, generation: Generation = 2, collection: str = COLLECTION) -> None:
        arguments = ["-m", "tests.interop.monque.peer", url, collection, str(generation)]
        super().__init__(f"Monque G{generation}", [sys.executable, *arguments], ROOT)

    def runs(self) -> Counter[str]:
        """How often it ran each job."""
        return Counter(event["job"] for event in self.events if event["event"] == "run")

    def complaints(self) -> list[str]:
        """What a Node process would have stumbled over, and what else went wrong."""
        wrong = [event for event in self.events if event["event"] in ("hazard", "error")]
        return [f"{event.get('where', '')} {event['what']}" for event in wrong]
