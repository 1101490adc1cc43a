"""The suite itself: nothing in it is lost."""

from __future__ import annotations

from collections import Counter

import pytest

import jobmill.testing.contract
from jobmill.core.changes import Changed
from jobmill.testing.contract import ProcessContract, StoreContract, WithinContract
from jobmill.testing.contract.support import only_refused


def test_no_test_hides_another_of_the_same_name() -> None:
    parts = {part for suite in (StoreContract, ProcessContract, WithinContract) for part in suite.__mro__}
    names = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_contract_is_part_of_a_suite() -> None:
    suites = {part.__name__ for suite in (StoreContract, ProcessContract, WithinContract) for part in suite.__mro__}
    written = {name for name in vars(jobmill.testing.contract) if name.endswith("Contract")}
    assert written == {name for name in suites if name.endswith("Contract")}


def test_a_failed_assert_of_the_suite_says_what_it_compared() -> None:
    with pytest.raises(AssertionError, match=r"\['one'\] == \[\]"):
        only_refused(Changed(ids=["one"], refused={}), "one")
