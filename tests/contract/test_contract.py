"""Every store keeps every promise of the port."""

from __future__ import annotations

import pytest

from jobmill.testing.contract import ProcessContract, StoreContract, WithinContract


class TestStore(StoreContract):
    """Each store."""


@pytest.mark.stores("sqlite", "postgres", "redis", "mongo")
class TestProcesses(ProcessContract):
    """Stores whose data several processes share."""


@pytest.mark.stores("sqlite", "postgres", "mongo")
class TestWithin(WithinContract):
    """Stores with transactions."""
