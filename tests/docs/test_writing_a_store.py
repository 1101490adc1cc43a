"""docs/writing-a-store.md: its steps are the store in examples/slow_store.py, and that store passes the contract."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from jobmill.testing.contract import StoreContract
from tests.docs.pages import ROOT, blocks, compiled, headings

PAGE = ROOT / "docs/writing-a-store.md"
EXAMPLE = ROOT / "examples/slow_store.py"


def _slow_store() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slow_store", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["slow_store"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _harness_block() -> dict[str, Any]:
    _slow_store()
    (block,) = [block for block in blocks(PAGE) if block.file == "test_my_store.py"]
    namespace: dict[str, Any] = {"__name__": "test_my_store"}
    exec(compiled(block), namespace)
    return namespace


# The whole contract, with the harness that the page shows.
TestMyStore = _harness_block()["TestMyStore"]


def test_the_harness_runs_the_whole_contract() -> None:
    assert issubclass(TestMyStore, StoreContract)


def test_the_steps_of_the_page_are_the_example() -> None:
    code = EXAMPLE.read_text()
    steps = [block.code for block in blocks(PAGE) if block.language == "python" and block.code in code]
    assert "\n\n".join(steps) == code
    assert len(steps) > len([heading for heading in headings(PAGE) if heading.startswith("Step ")])


def test_the_store_has_six_primitives() -> None:
    primitives = [name for name in vars(_slow_store().Database) if not name.startswith("_")]
    assert primitives == ["transaction", "now", "read", "read_all", "write", "delete"]


def test_the_example_stays_short() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(lines) < 690
