"""The example harness of docs/writing-a-store.md is a harness: the parts of the contract that it begins with pass."""

from __future__ import annotations

from typing import Any

from jobmill.testing.contract import StoreContract
from tests.docs.pages import ROOT, blocks, compiled

PAGE = ROOT / "docs/writing-a-store.md"


def _namespace() -> dict[str, Any]:
    (block,) = [block for block in blocks(PAGE) if block.file == "test_my_store.py"]
    namespace: dict[str, Any] = {"__name__": "test_my_store"}
    exec(compiled(block), namespace)
    return namespace


_EXAMPLE = _namespace()

TestFirstParts = _EXAMPLE["TestFirstParts"]


def test_the_parts_are_parts_of_the_whole() -> None:
    parts = [part for part in TestFirstParts.__bases__ if part is not _EXAMPLE["WithMyStore"]]
    assert len(parts) == 5
    assert all(issubclass(StoreContract, part) for part in parts)
