"""The suite itself: nothing in it is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jobmill.testing.contract
from jobmill.testing.contract import ProcessContract, StoreContract, WithinContract


def test_no_test_hides_another_of_the_same_name() -> None:
    parts = {part for suite in (StoreContract, ProcessContract, WithinContract) for part in suite.__mro__}
    names = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_contract_is_part_of_a_suite() -> None:
    suites = {part.__name__ for suite in (StoreContract, ProcessContract, WithinContract) for part in suite.__mro__}
    written = {name for name in vars(jobmill.testing.contract) if name.endswith("Contract")}
    assert written == {name for name in suites if name.endswith("Contract")}


def test_asserts_are_rewritten_in_every_module_of_the_suite() -> None:
    folder = Path(jobmill.testing.contract.__file__).parent
    source = (folder / "__init__.py").read_text()
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "harness"}
    assert [module for module in sorted(modules) if f'"{module}"' not in source] == []
