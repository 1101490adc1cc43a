"""Which stores and which operations a test runs with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.faults.operations import LACKING, STORES, Operation

#: The stores that the default run tries a fault on: each fault, and each store with several. `--all` tries all stores.
BY_DEFAULT: Mapping[Operation, Sequence[str]] = {
    "kill": ("postgres", "redis"),
    "pause": ("sqlite", "mongo"),
    "cut": ("redis", "mongo"),
    "stall": ("postgres",),
    "refuse": ("redis",),
    "vanish": (),  # it takes as long as the deadline of a call
    "delay": ("redis",),
    "drop_answer": ("mongo",),
    "terminate": ("postgres",),
    "crowd": ("postgres",),
    "read_only": ("postgres",),
    "full_disk": ("sqlite", "mongo"),
}


def on_stores(*names: str, extended: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test once for each of these stores, with the fixture `server`; only `--all` runs it for the others."""
    rows = [pytest.param(name, marks=_marks(name, is_extended=False), id=name) for name in names]
    rows += [pytest.param(name, marks=_marks(name, is_extended=True), id=name) for name in extended]
    return pytest.mark.parametrize("server", rows, indirect=True)


def _marks(store_name: str, *, is_extended: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.stores(store_name), *([pytest.mark.extended] if is_extended else [])]


SERVERS = ("postgres", "redis", "mongo")

#: All stores that other processes can use.
on_each_store = on_stores(*STORES)
#: The stores that clients reach over a network.
on_each_server = on_stores(*SERVERS)
#: For what hardly depends on the store.
on_a_file_at_least = on_stores("sqlite", extended=SERVERS)


def on_each_fault(*operations: Operation) -> pytest.MarkDecorator:
    """Run a test once for each store and operation that the store does not lack; by default for some of the stores."""
    rows = [
        pytest.param(name, operation, marks=_marks(name, is_extended=name not in BY_DEFAULT[operation]))
        for operation in operations
        for name in STORES
        if operation not in LACKING[name]
    ]
    return pytest.mark.parametrize(("server", "operation"), rows, indirect=["server"])
