"""Which tests of the contract run when: the default run has every case on the newest version of every server."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = 8


def collected(*arguments: str) -> Counter[str]:
    """How many cases of a test run on each store."""
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q"]
    which = ["tests/contract", "-k", "test_a_filter_by_states"]  # a file that is named would run whole
    run = subprocess.run([*pytest_, *which, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    ids = [line for line in run.stdout.splitlines() if "::test_a_filter_by_states[" in line]
    return Counter(id.partition("[")[2].partition("-")[0].rstrip("0123456789") for id in ids)


@pytest.mark.slow
def test_the_default_run_has_every_case_on_every_store() -> None:
    found = collected()
    assert set(found.values()) == {CASES}
    assert len(found) == 5


@pytest.mark.slow
def test_the_quick_run_has_one_case_on_redis_and_none_on_the_other_servers() -> None:
    found = collected("-m", "not slow")
    assert found.pop("memory") == found.pop("sqlite") == CASES
    assert list(found.values()) == [1]
    assert not {"postgres", "mongo"} & set(found)
