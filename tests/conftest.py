"""`--store NAME` (repeatable): which stores are under test. Without it everything runs, on every store that is known.

A test that uses the fixture `store_name` runs once per store; `@pytest.mark.stores("sqlite")` says that a test is only
for some. With `--store`, whatever is not for one of the stores named is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

STORES = ("memory", "sqlite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        action="append",
        metavar="NAME",
        help=f"only the tests of this store ({', '.join(STORES)}); may be given more than once",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stores(*names): only for these stores")
    for name in config.getoption("--store") or ():
        if name not in STORES:
            raise pytest.UsageError(f"--store {name}: there is no such store; known are {', '.join(STORES)}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_name" in metafunc.fixturenames:
        meant = _meant(metafunc.definition)
        chosen = metafunc.config.getoption("--store") or STORES
        names = [name for name in meant if name in chosen]
        # Never an empty set, which would show as a skip: what is not chosen is left out below.
        metafunc.parametrize("store_name", names or meant)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--store")
    if not chosen:
        return
    left_out = [item for item in items if not _is_for(item, chosen)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_for(item: pytest.Item, chosen: Sequence[str]) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "store_name" in callspec.params:
        return callspec.params["store_name"] in chosen
    return item.get_closest_marker("stores") is not None and any(name in chosen for name in _meant(item))


def _meant(item: pytest.Item) -> Sequence[str]:
    mark = item.get_closest_marker("stores")
    return STORES if mark is None else mark.args
