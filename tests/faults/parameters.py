"""Which stores and which operations a test runs with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.operations import LACKING, STORES, Operation


def on_stores(*names: str, extended: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test once for each of these stores, with the fixture `server`; only `--all` runs it for the others."""
    rows = [pytest.param(name, marks=pytest.mark.stores(name), id=name) for name in names]
    rows += [pytest.param(name, marks=[pytest.mark.stores(name), pytest.mark.extended], id=name) for name in extended]
    return pytest.mark.parametrize("server", rows, indirect=True)


SERVERS = ("postgres", "redis", "mongo")

#: All stores that other processes can use.
on_each_store = on_stores(*STORES)
#: The stores that clients reach over a network.
on_each_server = on_stores(*SERVERS)
#: For what hardly depends on the store.
on_a_file_at_least = on_stores("sqlite", extended=SERVERS)


def on_each_fault(*operations: Operation) -> pytest.MarkDecorator:
    """Run a test once for each store and operation that the store does not lack."""
    rows = [
        pytest.param(name, operation, marks=pytest.mark.stores(name))
        for operation in operations
        for name in STORES
        if operation not in LACKING[name]
    ]
    return pytest.mark.parametrize(("server", "operation"), rows, indirect=["server"])
