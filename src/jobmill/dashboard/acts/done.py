"""What an act has done."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Done(Struct, frozen=True, kw_only=True):
    """The result of an act: a sentence, and the page to show next (None: where the visitor was)."""

    text: str
    #: caution: it was done in part. failed: nothing was done.
    level: Literal["succeeded", "caution", "failed"] = "succeeded"
    #: More sentences, for example why some jobs were refused.
    details: list[str] = []
    count: int = 0
    goto: str | None = None
