"""The walk of one job has a budget: how many lines of functions a reader follows from `enqueue()` to the settled job.

A change may raise a budget by at most 3 %, with a sentence in its commit that says why.
"""

from __future__ import annotations

import pytest

from tests.walk.tracer import SOURCE, lines_of, walk

BUDGETS = {"memory": 815, "sqlite": 1_015, "postgres": 1_095, "redis": 1_067, "mongo": 1_358}


@pytest.mark.slow
@pytest.mark.alone
async def test_the_walk_of_one_job_stays_within_its_budget(store_name: str, store_url: str) -> None:
    walked = await walk(store_url, migrate=store_name in ("postgres", "mongo"))
    lines = {f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}": lines_of(code) for code in walked}
    listed = "\n".join(f"{count:4} {name}" for name, count in sorted(lines.items(), key=lambda one: -one[1]))
    assert any(name.startswith(f"stores/{store_name}/") for name in lines), "the store is part of the walk"
    assert any(name.startswith("worker/runner.py") for name in lines), "and so is the run"
    assert sum(lines.values()) <= BUDGETS[store_name], listed


def test_lines_are_counted_without_docstrings_and_lambdas() -> None:
    def documented() -> int:
        """One line.

        And another.
        """
        return max([1, 2], key=lambda one: one)

    assert lines_of(documented.__code__) == 2
